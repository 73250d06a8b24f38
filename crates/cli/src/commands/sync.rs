//! `sync`: makes everything durable that was written to mounted volumes. The kernel sends sync(2) and syncfs(2) to
//! no FUSE server, so `sync` and `sync -f` write cached pages to the server, and no more.

use super::stats::{connect, said};
use crate::args::SyncArgs;
use crate::failure::Result;

/// `sync MOUNTPOINT…`.
pub fn sync(args: &SyncArgs) -> Result<()> {
    for mountpoint in &args.mountpoints {
        let synced = connect(mountpoint)?.sync();
        synced.map_err(|e| said(&e).at(mountpoint.display()))?;
    }
    Ok(())
}
