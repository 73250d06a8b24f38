//! What both formats share on disk: quota files, the folding of names, lists of features, and tables of errors.

pub mod casefold;
pub mod features;
mod messages;
pub mod quota;
