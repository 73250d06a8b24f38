//! Clean f2fs volumes: those of f2fs-tools, and those of a real kernel.

use blockwright_test_support::lab as common;

use std::process::{Command, Stdio};

use blockwright_check::Mode;
use blockwright_device::MemoryDevice;
use blockwright_ondisk::f2fs::BlockAddr;
use common::f2fs::{
    F2Lab, F2Volume, FULL, f2fs_tools, fsck_path, names, repair_f2fs, show, verify_path,
};

#[test]
fn volumes_of_the_tools_are_clean() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let android = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
                   flexible_inline_xattr,verity,casefold,compression";
    let cases: [(&str, &[&str], bool); 12] = [
        ("100M", &[], true),
        ("100M", &["-O", FULL], true),
        ("120M", &["-O", android, "-C", "utf8"], true),
        ("100M", &["-i"], true),
        ("100M", &["-O", "extra_attr,inode_checksum"], true),
        (
            "100M",
            &["-O", "extra_attr,flexible_inline_xattr,lost_found"],
            true,
        ),
        ("100M", &["-O", "encrypt,quota"], true),
        ("64M", &[], false),
        ("300M", &["-s", "2"], false),
        ("400M", &["-s", "2", "-z", "2"], false),
        ("5G", &["-i", "-a", "0"], false),
        ("200G", &[], false),
    ];
    for (size, args, fill) in cases {
        let path = lab.make("volume.img", size, args, fill);
        let (clean, text) = fsck_path(&path);
        assert!(clean, "{args:?}: fsck.f2fs: {text}");
        let report = verify_path(&path);
        assert!(report.issues.is_empty(), "{args:?}:\n{}", show(&report));
        if fill {
            assert!(report.stats.files > 320, "{args:?}: {:?}", report.stats);
            assert_eq!(report.stats.symlinks, 1, "{args:?}");
        }
    }
}

/// The directory of a user-mode Linux's modules; missing, it fails under CI and skips loudly elsewhere.
fn user_mode_linux() -> bool {
    let there = Command::new("sh")
        .args([
            "-c",
            "command -v linux.uml && ls /usr/lib/uml/modules/*/kernel/fs/f2fs/f2fs.ko",
        ])
        .output()
        .is_ok_and(|out| out.status.success());
    blockwright_oracles::available("user-mode-linux with f2fs", there)
}

/// One boot: a volume is used and unmounted; another is used, and power fails.
const INIT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t tmpfs tmp /mnt; mkdir /mnt/a /mnt/b
M=/usr/lib/uml/modules/$(uname -r)/kernel
insmod $M/crypto/crc32_generic.ko; insmod $M/fs/f2fs/f2fs.ko
mount -t f2fs /dev/ubda /mnt/a || echo NOT-MOUNTED
cd /mnt/a
mkdir -p d/e/f many z; chattr +c z
i=0; while [ $i -lt 600 ]; do echo $i > many/name-number-$i; i=$((i+1)); done
rm many/name-number-*[05]
dd if=/dev/zero of=big bs=1M count=6
dd if=/dev/urandom of=big bs=4k count=100 seek=50 conv=notrunc
dd if=/dev/zero of=sparse bs=4k count=1 seek=300000
ln -s target l; ln big d/hard; mkfifo p; mknod c c 1 3
setfattr -n trusted.t -v value big; setfattr -n trusted.l -v $(head -c 3000 /dev/zero | tr '\0' x) d
mv d/e many/moved; truncate -s 3M big; fallocate -l 1M fa
head -c 300000 /dev/zero > z/zero; head -c 70000 /dev/urandom > z/noise
sync; echo more > after
cd /; umount /mnt/a || echo NOT-UNMOUNTED
mount -t f2fs /dev/ubdb /mnt/b || echo NOT-MOUNTED
cd /mnt/b
mkdir d; dd if=/dev/zero of=d/x bs=4k count=10; echo hi > gone
exec 9<gone; rm gone; sync
dd if=/dev/urandom of=d/x bs=4k count=3 conv=notrunc,fsync
dd if=/dev/urandom of=d/y bs=4k count=3 conv=fsync
echo ALL-DONE
perl -e 'syscall(169, 0xfee1dead, 672274793, 0x4321fedc)'
"#;

#[test]
fn volumes_of_a_real_kernel_are_clean() {
    if !f2fs_tools() || !user_mode_linux() {
        return;
    }
    let lab = F2Lab::new();
    let used = lab.make("used.img", "100M", &["-O", FULL], true);
    let crashed = lab.make("crashed.img", "100M", &[], false);
    let init = lab.dir.path().join("init.sh");
    std::fs::write(&init, INIT).unwrap();
    let out = Command::new("timeout")
        .envs(blockwright_oracles::uml_environment())
        .args([
            "-k",
            "2",
            "120",
            "linux.uml",
            "mem=256M",
            "rootfstype=hostfs",
            "rw",
        ])
        .arg("init=/bin/sh")
        .args([
            format!("ubd0={}", used.display()),
            format!("ubd1={}", crashed.display()),
        ])
        .args(["con=null", "con0=fd:0,fd:1"])
        .arg("--")
        .arg(&init)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        said.contains("ALL-DONE") && !said.contains("NOT-"),
        "{said}"
    );

    let (clean, text) = fsck_path(&used);
    assert!(clean, "fsck.f2fs: {text}");
    let report = verify_path(&used);
    assert!(report.is_clean(), "{}", show(&report));
    assert!(report.stats.files > 800, "{:?}", report.stats);

    // Files written by fsync wait for the next mount: that is no damage.
    let report = verify_path(&crashed);
    assert!(report.is_clean(), "{}", show(&report));
    let names = names(&report);
    for name in ["RecoveryPending", "OrphanPending"] {
        assert!(names.iter().any(|n| n == name), "{name}: {}", show(&report));
    }
    // A repair would lose them, and is not made.
    let v = F2Volume::new(MemoryDevice::load(&crashed).unwrap());
    v.edit(BlockAddr(1), |b| b[1100] ^= 1);
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    let report = report.unwrap();
    assert!(
        !report.changed && report.has_uncorrected(),
        "{}",
        show(&report)
    );
    assert_eq!(after.to_vec(), v.device.to_vec());
}
