//! The collections that the tree is measured against, behind the interface of the tree (cargo feature `comparison`).

mod list;

use super::Collection;
use super::tree::Tree;
use crate::alloc::Run;
use crate::comparison::Preallocation;
use blockwright_ondisk::ext4::BlockNo;
#[cfg(not(test))]
use list::List;
#[cfg(test)]
pub(super) use list::{ENTRIES_MAX, List, SLACK};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

/// The mode in use.
#[derive(Debug, Default)]
pub(crate) struct Mode(AtomicU8);

impl Mode {
    pub(crate) fn set(&self, mode: Preallocation) {
        self.0.store(mode as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Preallocation {
        [
            Preallocation::Tree,
            Preallocation::List,
            Preallocation::None,
        ]
        .into_iter()
        .find(|m| *m as u8 == self.0.load(Ordering::Relaxed))
        .unwrap_or_default()
    }

    pub(super) fn preallocates(&self) -> bool {
        self.get() != Preallocation::None
    }

    pub(super) fn collection(&self) -> Store {
        match self.get() {
            Preallocation::List => Store::List(List::default()),
            Preallocation::Tree | Preallocation::None => Store::Tree(Tree::default()),
        }
    }
}

/// A file's preallocations in one of the ways.
#[derive(Debug)]
pub(crate) enum Store {
    Tree(Tree),
    List(List),
}

impl Collection for Store {
    fn use_at(&self, at: u64, max: u32, limit: Option<BlockNo>) -> Option<Run> {
        match self {
            Store::Tree(tree) => tree.use_at(at, max, limit),
            Store::List(list) => list.use_at(at, max, limit),
        }
    }

    fn keeps(&self, at: u64, len: u32) -> bool {
        match self {
            Store::Tree(tree) => tree.keeps(at, len),
            Store::List(_) => false,
        }
    }

    fn keep(&self, at: u64, run: Run) -> Vec<Run> {
        match self {
            Store::Tree(tree) => tree.keep(at, run),
            Store::List(list) => list.insert(at, run),
        }
    }

    fn clip(&self, at: u64, window: Range<u64>) -> Range<u64> {
        match self {
            Store::Tree(tree) => tree.clip(at, window),
            Store::List(list) => list.clip(at, window),
        }
    }

    fn discard(&self) -> Vec<Run> {
        match self {
            Store::Tree(tree) => tree.discard(),
            Store::List(list) => list.discard(),
        }
    }
}
