//! What both formats share on disk: quota files, the folding of names, and lists of features.

pub mod casefold;
pub mod features;
pub mod quota;
