//! The durability model: every state the volume passed through, and what was promised when.
//!
//! The names and attributes of the volume after operation *j* are `states[j]`. Metadata operations survive in order,
//! so a recovered volume must equal some state between the *floor* (what was promised at the cut) and the last
//! operation begun. Contents are kept per file as versions; a recovered byte must be one that some version since the
//! last promise had at that place. It may be zero if that place was a hole or beyond the end in such a version.
//!
//! Where fsync makes single files durable ([`Model::rolling`]; f2fs), a recovered volume is such a state with the files
//! fsynced after it rolled forward: their attributes as they were then, and new files under the names they had.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A file, directory or symlink for as long as it exists, whatever its names.
pub type NodeId = u64;

/// What a node is, apart from a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// `d`, `f` or `l`.
    pub kind: char,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// One attribute, `user.mark`.
    pub mark: Option<Vec<u8>>,
    /// Symlink target.
    pub target: Vec<u8>,
}

/// The whole namespace at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Full path → node.
    pub names: BTreeMap<String, NodeId>,
    /// Nodes that have names.
    pub nodes: BTreeMap<NodeId, NodeState>,
}

/// A file's bytes after an operation.
#[derive(Clone, Debug)]
pub struct Version {
    /// The operation that made it.
    pub op: usize,
    /// All bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// Something promised: true of every cut after `log`.
#[derive(Clone, Debug)]
pub struct Promise {
    /// Log position.
    pub log: usize,
    /// The namespace is at least as far as after this many operations.
    pub floor: usize,
    /// These files' contents are at least as far as after this operation.
    pub files: Vec<(NodeId, usize)>,
}

/// A file was made durable for itself.
#[derive(Clone, Debug)]
struct Rolled {
    /// Log positions when that began, and when it was promised.
    log: std::ops::Range<usize>,
    /// After this operation.
    op: usize,
    id: NodeId,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// fsync makes single files durable.
    rolling: bool,
    rolled: Vec<Rolled>,
    /// The last operation that changed an existing node's names.
    renamed: BTreeMap<NodeId, usize>,
    states: Vec<State>,
    /// Log position when operation *k* (from 1) began.
    begun: Vec<usize>,
    versions: BTreeMap<NodeId, Vec<Version>>,
    /// The last operation that changed a node's names or attributes.
    touched: BTreeMap<NodeId, usize>,
    promises: Vec<Promise>,
    /// What was done to each node, for messages.
    notes: BTreeMap<NodeId, Vec<String>>,
    next: NodeId,
}

impl Model {
    /// The model of a volume with nothing but its root.
    #[must_use]
    pub fn new() -> Self {
        Model {
            states: vec![State::default()],
            begun: vec![0],
            next: 1,
            ..Model::default()
        }
    }

    /// As [`Model::new`], of a volume whose fsync makes single files durable.
    #[must_use]
    pub fn rolling() -> Self {
        Model {
            rolling: true,
            ..Model::new()
        }
    }

    /// Begins with what is there, the bytes of its files with it, in the place of an empty volume.
    #[must_use]
    pub fn on(mut self, first: State, bytes: BTreeMap<NodeId, Vec<u8>>) -> Self {
        self.next = first.nodes.keys().max().map_or(1, |id| id + 1);
        self.versions = bytes
            .into_iter()
            .map(|(id, bytes)| {
                let bytes = Arc::new(bytes);
                (id, vec![Version { op: 0, bytes }])
            })
            .collect();
        self.states = vec![first];
        self
    }

    /// How many operations were done.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.states.len() - 1
    }

    /// The present state.
    #[must_use]
    pub fn now(&self) -> &State {
        self.states.last().expect("there is always the first state")
    }

    /// Starts the next operation at this log position; until it ends, a crash may show it or not.
    pub fn begin(&mut self, log: usize) {
        let state = self.now().clone();
        self.states.push(state);
        self.begun.push(log);
    }

    /// The state being made by the present operation.
    pub fn state(&mut self) -> &mut State {
        self.states.last_mut().expect("begun")
    }

    /// A new node's number; its names are the caller's business.
    pub fn new_node(&mut self, state: NodeState) -> NodeId {
        let id = self.next;
        self.next += 1;
        if state.kind == 'f' {
            let op = self.operations();
            self.versions.insert(
                id,
                vec![Version {
                    op,
                    bytes: Arc::default(),
                }],
            );
        }
        self.state().nodes.insert(id, state);
        self.touch(id);
        id
    }

    /// The present operation changed a name or attribute of the node.
    pub fn touch(&mut self, id: NodeId) {
        let op = self.operations();
        self.touched.insert(id, op);
    }

    /// The present operation changed an existing node's names.
    pub fn touch_name(&mut self, id: NodeId) {
        let op = self.operations();
        self.renamed.insert(id, op);
        self.touch(id);
    }

    /// Says, for messages, what the present operation did to a node.
    pub fn note(&mut self, id: NodeId, what: String) {
        let op = self.operations();
        self.notes
            .entry(id)
            .or_default()
            .push(format!("{op}: {what}"));
    }

    /// The last things done to a node.
    #[must_use]
    pub fn notes(&self, id: NodeId) -> String {
        let all = self.notes.get(&id).map(Vec::as_slice).unwrap_or_default();
        all[all.len().saturating_sub(48)..].join(", ")
    }

    /// Drops nodes that have no name left.
    pub fn prune(&mut self) {
        let state = self.state();
        let named: std::collections::BTreeSet<NodeId> = state.names.values().copied().collect();
        state.nodes.retain(|id, _| named.contains(id));
    }

    /// A file's bytes now.
    #[must_use]
    pub fn bytes(&self, id: NodeId) -> Arc<Vec<u8>> {
        self.versions
            .get(&id)
            .and_then(|v| v.last())
            .map(|v| Arc::clone(&v.bytes))
            .unwrap_or_default()
    }

    /// The present operation changed a file's bytes.
    pub fn set_bytes(&mut self, id: NodeId, bytes: Vec<u8>) {
        let op = self.operations();
        self.versions.entry(id).or_default().push(Version {
            op,
            bytes: Arc::new(bytes),
        });
    }

    /// `sync` returned.
    pub fn promise_all(&mut self, log: usize) {
        let floor = self.operations();
        let files = self.versions.keys().map(|id| (*id, floor)).collect();
        self.promises.push(Promise { log, floor, files });
    }

    /// `fsync` or `fdatasync` of a file returned; it had begun at log position `began`. The first promises its
    /// name and attributes too.
    pub fn promise_file(&mut self, began: usize, log: usize, id: NodeId, metadata: bool) {
        let op = self.operations();
        let floor = match (self.rolling, metadata) {
            (false, false) => 0,
            (false, true) => self.touched.get(&id).copied().unwrap_or(0),
            (true, _) => {
                let log = began..log;
                self.rolled.push(Rolled { log, op, id });
                let names = self.now().names.values().filter(|n| **n == id).count();
                if names == 1 {
                    self.renamed.get(&id).copied().unwrap_or(0)
                } else {
                    op
                }
            }
        };
        self.promises.push(Promise {
            log,
            floor,
            files: vec![(id, op)],
        });
    }

    /// `fsync` of a directory returned: names in it are durable up to the last change of one.
    pub fn promise_names(&mut self, log: usize, last_change: usize) {
        self.promises.push(Promise {
            log,
            floor: last_change,
            files: Vec::new(),
        });
    }

    /// What bounds [`Model::possible`] from below, for messages.
    #[must_use]
    pub fn why(&self, cut: usize) -> String {
        let sure = self.promises.iter().filter(|p| p.log <= cut);
        match sure.max_by_key(|p| p.floor) {
            Some(p) => format!("promised at {} with {} files", p.log, p.files.len()),
            None => "nothing was promised".into(),
        }
    }

    /// States that a volume cut at this log position may show.
    #[must_use]
    pub fn possible(&self, cut: usize) -> std::ops::RangeInclusive<usize> {
        let floor = self
            .promises
            .iter()
            .filter(|p| p.log <= cut)
            .map(|p| p.floor)
            .max()
            .unwrap_or(0);
        let ceiling = self.begun.iter().rposition(|log| *log <= cut).unwrap_or(0);
        floor..=ceiling
    }

    /// States that a volume whose names are at least those after operation `j` may show at this cut: one, or
    /// two while a file was being made durable, or none.
    #[must_use]
    pub fn at(&self, j: usize, cut: usize) -> Vec<State> {
        let begun = |r: &&Rolled| r.log.start <= cut && r.op > j;
        let rolled: Vec<&Rolled> = self.rolled.iter().filter(begun).collect();
        let promised = rolled.iter().filter(|r| r.log.end <= cut).count();
        let mut all = Vec::new();
        for n in promised..=rolled.len() {
            let mut state = Some(self.states[j].clone());
            for r in &rolled[..n] {
                state = state.and_then(|s| self.roll(s, r));
            }
            all.extend(state);
        }
        all
    }

    /// The state with a file rolled forward; `None` where another checkpoint must have come before.
    fn roll(&self, mut state: State, r: &Rolled) -> Option<State> {
        let then = &self.states[r.op];
        let node = then.nodes.get(&r.id)?;
        if let Some(there) = state.nodes.get_mut(&r.id) {
            *there = node.clone();
            return Some(state);
        }
        let (path, _) = then.names.iter().find(|(_, id)| **id == r.id)?;
        let (dir, name) = path.rsplit_once('/')?;
        // The parent may have another name there, but must be there.
        let dir = match dir {
            "" => String::new(),
            dir => {
                let parent = then.names.get(dir)?;
                let (path, _) = state.names.iter().find(|(_, id)| *id == parent)?;
                path.clone()
            }
        };
        let path = format!("{dir}/{name}");
        if let Some(other) = state.names.remove(&path) {
            // The name's former owner was removed by then, or it would be lost.
            let gone = !then.nodes.contains_key(&other);
            if !gone || state.nodes.get(&other)?.kind == 'd' {
                return None;
            }
            if !state.names.values().any(|id| *id == other) {
                state.nodes.remove(&other);
            }
        }
        state.names.insert(path, r.id);
        state.nodes.insert(r.id, node.clone());
        Some(state)
    }

    /// The versions a file may show at this cut, oldest first; never empty for a file.
    #[must_use]
    pub fn allowed(&self, id: NodeId, cut: usize) -> Vec<&Version> {
        let Some(all) = self.versions.get(&id) else {
            return Vec::new();
        };
        let promised = self
            .promises
            .iter()
            .filter(|p| p.log <= cut)
            .flat_map(|p| &p.files)
            .filter(|(file, _)| *file == id)
            .map(|(_, op)| *op)
            .max();
        let ceiling = self.begun.iter().rposition(|log| *log <= cut).unwrap_or(0);
        let first = promised.map_or(0, |op| all.iter().rposition(|v| v.op <= op).unwrap_or(0));
        all.iter()
            .enumerate()
            .filter(|(k, v)| *k >= first && v.op <= ceiling)
            .map(|(_, v)| v)
            .collect()
    }

    /// Whether a file may have these bytes at this cut.
    ///
    /// # Errors
    /// Says where it cannot.
    pub fn check_bytes(&self, id: NodeId, cut: usize, found: &[u8]) -> Result<(), String> {
        let versions = self.allowed(id, cut);
        let shortest = versions.iter().map(|v| v.bytes.len()).min().unwrap_or(0);
        let longest = versions.iter().map(|v| v.bytes.len()).max().unwrap_or(0);
        if found.len() < shortest || found.len() > longest {
            return Err(format!(
                "{} bytes long, may be {shortest} to {longest}",
                found.len()
            ));
        }
        /// Bytes that are compared at once. Most are those of one version.
        const SECTOR: usize = 512;
        let same = |at: usize, sector: &[u8]| {
            let of = |v: &&Version| v.bytes.get(at..at + sector.len()) == Some(sector);
            versions.iter().rev().any(of)
        };
        let sectors = found.chunks(SECTOR).enumerate();
        let mixed = sectors.filter(|(n, sector)| !same(n * SECTOR, sector));
        let bytes = mixed.flat_map(|(n, sector)| (n * SECTOR..).zip(sector));
        for (at, byte) in bytes {
            let fits = versions.iter().any(|v| match v.bytes.get(at) {
                Some(b) => b == byte,
                None => *byte == 0,
            });
            if !fits {
                let could: Vec<Option<u8>> =
                    versions.iter().map(|v| v.bytes.get(at).copied()).collect();
                return Err(format!(
                    "byte {at} of {} is {byte:#04x}{}, in the versions since the last promise it was {could:02x?}",
                    found.len(),
                    if *byte == crate::plan::STALE {
                        " (stale data of the device)"
                    } else {
                        ""
                    },
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> NodeState {
        NodeState {
            kind: 'f',
            mode: 0o644,
            uid: 0,
            mark: None,
            target: Vec::new(),
        }
    }

    fn model() -> (Model, NodeId) {
        let mut m = Model::new();
        m.begin(10);
        let id = m.new_node(file());
        m.state().names.insert("/a".into(), id);
        m.begin(20);
        m.set_bytes(id, b"first".to_vec());
        m.promise_file(21, 25, id, true);
        m.begin(30);
        m.set_bytes(id, b"other bytes".to_vec());
        (m, id)
    }

    #[test]
    fn a_promise_bounds_from_below() {
        let (m, id) = model();
        assert_eq!(m.possible(5), 0..=0);
        assert_eq!(m.possible(22), 0..=2);
        assert_eq!(
            m.possible(25),
            1..=2,
            "the file's name was promised with its data"
        );
        assert!(m.check_bytes(id, 22, b"").is_ok());
        assert!(
            m.check_bytes(id, 26, b"").is_err(),
            "promised bytes are missing"
        );
        assert!(m.check_bytes(id, 26, b"first").is_ok());
        assert!(
            m.check_bytes(id, 26, b"other").is_err(),
            "an operation that had not begun"
        );
        assert!(m.check_bytes(id, 31, b"other bytes").is_ok());
        assert!(
            m.check_bytes(id, 31, b"first\0\0").is_ok(),
            "a hole where nothing was written"
        );
        assert!(
            m.check_bytes(id, 31, &[crate::plan::STALE; 5]).is_err(),
            "stale data"
        );
    }

    #[test]
    fn files_roll_forward_alone() {
        let mut m = Model::rolling();
        let make = |m: &mut Model, log, path: &str| {
            m.begin(log);
            let id = m.new_node(file());
            m.state().names.insert(path.into(), id);
            id
        };
        let other = make(&mut m, 10, "/other");
        let id = make(&mut m, 20, "/a");
        m.promise_file(22, 25, id, true);
        let names = |m: &Model, j, cut| -> Vec<Vec<String>> {
            let all = m.at(j, cut);
            all.iter()
                .map(|s| s.names.keys().cloned().collect())
                .collect()
        };
        assert_eq!(m.possible(30), 0..=2);
        assert_eq!(names(&m, 0, 21), [Vec::<String>::new()]);
        assert_eq!(names(&m, 0, 23), [vec![], vec!["/a".to_owned()]]);
        assert_eq!(names(&m, 0, 30), [vec!["/a".to_owned()]]);
        assert_eq!(
            names(&m, 2, 30),
            [vec!["/a".to_owned(), "/other".to_owned()]]
        );
        // A new file under the name of one that lives on elsewhere.
        m.begin(40);
        m.state().names.remove("/other");
        m.state().names.insert("/moved".into(), other);
        m.touch_name(other);
        let new = make(&mut m, 50, "/other");
        m.promise_file(51, 55, new, true);
        assert!(names(&m, 2, 60).is_empty(), "it would be lost");
        assert_eq!(names(&m, 3, 60).len(), 1);
        m.promise_file(61, 65, other, true);
        assert_eq!(m.possible(70), 3..=4, "renamed, and promised");
    }
}
