//! Opening a volume for a check.

use blockwright_device::SharedDevice;

use super::context::{Checker, Log, Opened};
use super::issue::IssueKind;
use super::store::Store;
use super::{CheckError, CheckOptions, pack, superblock};
use crate::{Mode, Phase};
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;

impl Checker {
    /// Reads superblocks, checkpoint packs and tables.
    pub fn open(device: SharedDevice, options: &CheckOptions) -> Result<Self, CheckError> {
        let mut log = Log::new(options.mode, options.max_issues);
        let (sb, geo, sb_stale) = superblock::open(&device, &mut log)?;
        let blocks = geo.main_end().max(geo.blocks_count);
        let store = Store::new(device, blocks);
        let (pack, anew) = pack::open(&store, &geo, &mut log)?;
        let opened = Opened {
            store,
            geo,
            sb,
            sb_stale,
            pack,
            log,
        };
        let mut checker = Self::new(opened, options.progress.clone());
        checker.changes += u64::from(anew);
        let recoverable = checker.find_recoverable(options.discard_fsynced)?;
        let flags = checker.pack.checkpoint.flags();
        if flags.intersects(CheckpointFlags::DISABLED | CheckpointFlags::DISABLED_QUICK) {
            checker.problem(IssueKind::CheckpointDisabled);
            checker.log.mode = Mode::ReadOnly;
        }
        checker.report_progress(Phase::Volume, 0, 1)?;
        let journals = checker.load_pack()?;
        checker.load_nat(&journals.nat)?;
        checker.load_sit(&journals.sit)?;
        checker.check_recoverable(&recoverable)?;
        checker.report_progress(Phase::Volume, 1, 1)?;
        Ok(checker)
    }
}
