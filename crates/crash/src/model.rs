//! The durability model: every state the volume passed through, and what was promised when.
//!
//! The names and attributes of the volume after operation *j* are `states[j]`. Metadata operations survive in order,
//! so a recovered volume must equal some state between the *floor* (what was promised at the cut) and the last
//! operation begun. Contents are kept per file as versions; a recovered byte must be one that the file had
//! at that place in some version since the last promise, or zero if it was a hole or beyond the end in one.

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

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Model {
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
        all[all.len().saturating_sub(24)..].join(", ")
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

    /// `fsync` or `fdatasync` of a file returned. The first promises its name and attributes too.
    pub fn promise_file(&mut self, log: usize, id: NodeId, metadata: bool) {
        let floor = if metadata {
            self.touched.get(&id).copied().unwrap_or(0)
        } else {
            0
        };
        let op = self.operations();
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

    /// State after operation `j`.
    #[must_use]
    pub fn at(&self, j: usize) -> &State {
        &self.states[j]
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
        for (at, byte) in found.iter().enumerate() {
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
                    if *byte == crate::STALE {
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
        m.promise_file(25, id, true);
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
            m.check_bytes(id, 31, &[crate::STALE; 5]).is_err(),
            "stale data"
        );
    }
}
