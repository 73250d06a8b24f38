//! Whether the volume is what the tree says.

use super::*;

impl World {
    pub(super) fn check_all(&self) -> Step {
        let entries = self.tree.entries();
        let mut found: Vec<String> = Vec::new();
        for e in self.v().walk("/") {
            let e = e.map_err(say("walk"))?;
            found.push(e.path.display().to_string());
        }
        found.retain(|p| p != "/");
        found.sort();
        let wanted: Vec<&str> = entries.iter().map(|e| e.path.as_str()).collect();
        if let Some(missing) = wanted.iter().find(|p| !found.iter().any(|f| f == *p)) {
            return Err(format!("not there: {missing}"));
        }
        if let Some(extra) = found.iter().find(|f| !wanted.contains(&f.as_str())) {
            return Err(format!("should not be there: {extra}"));
        }
        for e in &entries {
            self.check_one(e)
                .map_err(|why| format!("{}: {why}", e.path))?;
        }
        for (file, id) in self.open.values() {
            compare_file("an open file", file, self.tree.node(*id).bytes())?;
            let nlink = file.metadata().map_err(say("stat"))?.nlink();
            if nlink != self.tree.node(*id).names {
                return Err(format!("an open file has {nlink} names"));
            }
        }
        Ok(())
    }

    pub(super) fn check_one(&self, e: &Entry) -> Step {
        let node = self.tree.node(e.id);
        let m = self.v().symlink_metadata(&e.path).map_err(say("stat"))?;
        let kind = match node.body {
            Body::File(_) => FileType::Regular,
            Body::Dir(_) => FileType::Directory,
            Body::Symlink(_) => FileType::Symlink,
            Body::Fifo => FileType::Fifo,
        };
        let is = (m.file_type(), m.permissions(), (m.uid(), m.gid()));
        if is != (kind, node.perm, node.owner) {
            return Err(format!(
                "{is:?} instead of {kind:?} {:o} {:?}",
                node.perm, node.owner
            ));
        }
        let links = match &node.body {
            Body::Dir(names) => {
                2 + names
                    .values()
                    .filter(|id| self.tree.node(**id).is_dir())
                    .count() as u32
            }
            _ => node.names,
        };
        if m.nlink() != links {
            return Err(format!("{} links instead of {links}", m.nlink()));
        }
        let mtime = (m.attr().mtime.secs, m.attr().mtime.nanos);
        if node.mtime.is_some_and(|t| t != mtime) {
            return Err(format!("mtime {mtime:?} instead of {:?}", node.mtime));
        }
        match &node.body {
            Body::File(bytes) => {
                let file = self.v().open_file(&e.path).map_err(say("open"))?;
                compare_file("contents", &file, bytes)?;
            }
            Body::Symlink(target) => {
                let real = self.v().read_link(&e.path).map_err(say("read link"))?;
                if real != Path::new(target) {
                    return Err(format!("a link to {}", real.display()));
                }
                return Ok(());
            }
            Body::Dir(_) => {}
            Body::Fifo => return Ok(()),
        }
        let mut names: Vec<String> = self
            .v()
            .list_xattr(&e.path)
            .map_err(say("list xattr"))?
            .into_iter()
            .map(|n| n.to_string_lossy().into_owned())
            .collect();
        names.sort();
        if !names.iter().eq(node.xattrs.keys()) {
            return Err(format!(
                "attributes {names:?} instead of {:?}",
                node.xattrs.keys()
            ));
        }
        for (name, value) in &node.xattrs {
            if self
                .v()
                .get_xattr(&e.path, name)
                .map_err(say("get xattr"))?
                != *value
            {
                return Err(format!("attribute {name} differs"));
            }
        }
        Ok(())
    }
}

pub(super) fn compare_file(what: &str, file: &File, want: &[u8]) -> Step {
    let size = file.metadata().map_err(say(what))?.len();
    if size != want.len() as u64 {
        return Err(format!("{what}: {size} bytes instead of {}", want.len()));
    }
    // Reading with O_DIRECT needs whole sectors.
    let mut got = vec![0xA5; (want.len() + 1).next_multiple_of(4096)];
    let mut at = 0;
    while at < want.len() {
        match file.read_at(&mut got[at..], at as u64).map_err(say(what))? {
            0 => return Err(format!("{what}: ends at {at} instead of {}", want.len())),
            n => at += n,
        }
    }
    match (0..want.len()).find(|i| got[*i] != want[*i]) {
        Some(i) => Err(format!(
            "{what}: byte {i} of {} is {:#x} instead of {:#x}",
            want.len(),
            got[i],
            want[i]
        )),
        None => Ok(()),
    }
}

/// What is said to be a hole must be zeroes, and the answers must fit together.
pub(super) fn segments(file: &File, want: &[u8]) -> Step {
    let mut at = 0;
    while at < want.len() as u64 {
        let data = match file.seek_data(at) {
            Ok(data) => data,
            Err(e) if e.kind() == ErrorKind::NoData => want.len() as u64,
            Err(e) => return Err(say("seek data")(e)),
        };
        if data < at || data > want.len() as u64 {
            return Err(format!("data after {at} at {data} of {}", want.len()));
        }
        if want[at as usize..data as usize].iter().any(|b| *b != 0) {
            return Err(format!("data in a hole from {at} to {data}"));
        }
        if data == want.len() as u64 {
            break;
        }
        let hole = file.seek_hole(data).map_err(say("seek hole"))?;
        if hole <= data || hole > want.len() as u64 {
            return Err(format!("a hole after {data} at {hole} of {}", want.len()));
        }
        at = hole;
    }
    let past = file.seek_data(want.len() as u64);
    match past {
        Err(e) if e.kind() == ErrorKind::NoData => Ok(()),
        other => Err(format!("data past the end: {other:?}")),
    }
}
