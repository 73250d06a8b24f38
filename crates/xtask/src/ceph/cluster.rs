//! A Ceph cluster of one monitor, one manager and three OSDs (BlueStore in files) on this machine, without authentication, reachable from this machine only.

use crate::scratch::Scratch;
use crate::served::kill;
use crate::steps::{run_tool, write};
use serde_json::Value;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const OSDS: usize = 3;
/// How long the cluster may take to come up, or to be whole again.
const PATIENCE: Duration = Duration::from_secs(240);
/// The size of each OSD's file, which is sparse, in bytes.
const OSD_BYTES: u64 = 8 << 30;
const POOL: &str = "rbd";

pub(super) struct Cluster<'a> {
    scratch: &'a Scratch,
    config: PathBuf,
    osds: Vec<Child>,
}

impl<'a> Cluster<'a> {
    /// Starts it, with a pool that keeps three copies and needs two of them.
    ///
    /// # Errors
    /// A server or a tool failed, or it took too long.
    pub(super) fn start(scratch: &'a Scratch) -> Result<Self, String> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = port.map_err(|e| e.to_string())?.port();
        let fsid = uuid()?;
        let config = scratch.path("ceph.conf");
        let dir = scratch.path("");
        let dir = dir.display();
        write(
            &config,
            &format!(
                "[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{port}
public addr = 127.0.0.1
ms bind ipv6 = false
auth cluster required = none
auth service required = none
auth client required = none
run dir = {dir}
crash dir = {dir}
osd pool default size = 3
osd pool default min size = 2
osd crush chooseleaf type = 0
[mon]
mon data = {dir}mon
mon cluster log file = {dir}cluster.log
log file = {dir}$name.log
admin socket = {dir}$name.asok
[mgr]
mgr data = {dir}mgr
log file = {dir}$name.log
admin socket = {dir}$name.asok
[osd]
osd data = {dir}osd.$id
osd memory target = 939524096
bluestore block size = {OSD_BYTES}
log file = {dir}$name.log
admin socket = {dir}$name.asok
[client]
log file = {dir}client.log
"
            ),
        )?;
        let mut cluster = Cluster {
            scratch,
            config,
            osds: Vec::new(),
        };
        let map = scratch.path("monmap");
        let mut make = Command::new("monmaptool");
        make.args(["--create", "--fsid", &fsid, "--addv", "a"]);
        make.arg(format!("[v2:127.0.0.1:{port}]")).arg(&map);
        run_tool(&mut make)?;
        for folder in ["mon", "mgr"] {
            let path = scratch.path(folder);
            std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let mut make = cluster.command("ceph-mon");
        run_tool(make.args(["--mkfs", "-i", "a", "--monmap"]).arg(&map))?;
        scratch.start(
            cluster.command("ceph-mon").args(["-i", "a", "-f"]),
            "mon.a.log",
        )?;
        cluster.wait("the monitor", |c| c.ceph(&["fsid"]).is_ok())?;
        scratch.start(
            cluster.command("ceph-mgr").args(["-i", "x", "-f"]),
            "mgr.x.log",
        )?;
        for number in 0..OSDS {
            let (id, uuid) = (number.to_string(), uuid()?);
            cluster.ceph(&["osd", "new", &uuid, &id])?;
            let path = scratch.path(&format!("osd.{id}"));
            std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let mut make = cluster.command("ceph-osd");
            make.args(["-i", &id, "--mkfs", "--osd-uuid", &uuid]);
            let mut made = scratch.start(&mut make, &format!("osd.{id}.log"))?;
            match made.wait() {
                Ok(status) if status.success() => {}
                ended => return Err(format!("{make:?}: {ended:?}")),
            }
            let osd = cluster.osd(number)?;
            cluster.osds.push(osd);
        }
        cluster.ceph(&["osd", "pool", "create", POOL, "32"])?;
        cluster.ceph(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
        cluster.wait("the pool", Cluster::is_whole)?;
        Ok(cluster)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(&self.config);
        command.env("CEPH_CONF", &self.config);
        command
    }

    fn osd(&self, number: usize) -> Result<Child, String> {
        let id = number.to_string();
        let mut command = self.command("ceph-osd");
        command.args(["-i", &id, "-f"]);
        self.scratch.start(&mut command, &format!("osd.{id}.log"))
    }

    fn ceph(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.command("ceph");
        command.args(["--connect-timeout", "20"]).args(args);
        let out = command.output().map_err(|e| format!("ceph: {e}"))?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(format!(
                "ceph {args:?}: {}",
                String::from_utf8_lossy(&out.stderr)
            )),
        }
    }

    fn status(&self) -> Option<Value> {
        serde_json::from_str(&self.ceph(&["status", "--format", "json"]).ok()?).ok()
    }

    /// Whether all OSDs are up, and every placement group has all its copies.
    fn is_whole(&self) -> bool {
        let Some(status) = self.status() else {
            return false;
        };
        let map = &status["pgmap"];
        let states = map["pgs_by_state"].as_array().cloned().unwrap_or_default();
        let up = status["osdmap"]["num_up_osds"].as_u64();
        up == Some(OSDS as u64)
            && map["num_pgs"].as_u64().is_some_and(|n| n > 0)
            && states.iter().all(|s| {
                s["state_name"]
                    .as_str()
                    .is_some_and(|s| s.starts_with("active+clean"))
            })
    }

    fn wait(&self, what: &str, ready: impl Fn(&Self) -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !ready(self) {
            if start.elapsed() > PATIENCE {
                let told = self.ceph(&["status"]).unwrap_or_else(|e| e);
                return Err(format!("{what} is not there after {PATIENCE:?}: {told}"));
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        Ok(())
    }

    /// Kills an OSD. The cluster must notice it.
    ///
    /// # Errors
    /// The cluster did not notice.
    pub(super) fn kill_osd(&mut self, number: usize) -> Result<(), String> {
        kill(&mut self.osds[number])?;
        self.wait("the map without the OSD", |c| {
            c.status()
                .is_some_and(|s| s["osdmap"]["num_up_osds"].as_u64() == Some(OSDS as u64 - 1))
        })
    }

    /// Starts an OSD again, and waits until nothing is missing.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub(super) fn restart_osd(&mut self, number: usize) -> Result<(), String> {
        self.osds[number] = self.osd(number)?;
        self.wait("the whole cluster", Cluster::is_whole)
    }

    /// Makes an RBD image with the features that `rbd` gives it, the exclusive lock among them.
    ///
    /// # Errors
    /// The tool's.
    pub(super) fn create(&self, image: &str, megabytes: u64) -> Result<(), String> {
        let size = format!("{megabytes}M");
        let mut command = self.command("rbd");
        command.args(["create", "--size", &size]);
        run_tool(command.arg(format!("{POOL}/{image}"))).map(drop)
    }

    /// Copies an image into a file, past NBD.
    ///
    /// # Errors
    /// The tool's.
    pub(super) fn export(&self, image: &str, to: &std::path::Path) -> Result<(), String> {
        let mut command = self.command("rbd");
        command.args(["export", "--no-progress"]);
        run_tool(command.arg(format!("{POOL}/{image}")).arg(to)).map(drop)
    }

    /// What QEMU calls an image.
    pub(super) fn qemu_name(&self, image: &str) -> String {
        format!("rbd:{POOL}/{image}:conf={}", self.config.display())
    }

    /// The version of the servers.
    pub(super) fn version(&self) -> String {
        let told = self.ceph(&["version"]).unwrap_or_default();
        told.split(" (")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    }
}

fn uuid() -> Result<String, String> {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|text| text.trim().to_owned())
        .map_err(|e| format!("no UUID: {e}"))
}
