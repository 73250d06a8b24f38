//! Fast commits: finding out whether the area behind the log holds any.

use blockwright_ondisk::ext4::fast_commit::{Record, Records, running_checksum};

use super::CheckError;
use super::replay::Log;

impl Log<'_> {
    /// Records of complete fast commits on top of the last transaction: `sequence` is the one
    /// that would come next.
    pub fn fast_commits(&self, sequence: u32) -> Result<u64, CheckError> {
        let (mut complete, mut pending) = (0u64, 0u64);
        let mut sum = 0;
        let mut begun = false;
        // The log ends in front of the block between the two, which neither uses.
        let area = self.head.log_end.saturating_add(1)..self.head.len;
        for at in area {
            let Some(block) = self.read(at)? else {
                break;
            };
            for record in Records::new(&block) {
                let Ok(record) = record else {
                    return Ok(complete);
                };
                match record.record {
                    Record::Head { features, tid } => {
                        if begun || tid != sequence || features != 0 {
                            return Ok(complete);
                        }
                        begun = true;
                        sum = running_checksum(sum, record.summed);
                    }
                    _ if !begun => return Ok(complete),
                    Record::Tail { tid, checksum } => {
                        sum = running_checksum(sum, record.summed);
                        if tid != sequence || sum != checksum {
                            return Ok(complete);
                        }
                        complete += pending;
                        (pending, sum) = (0, 0);
                    }
                    Record::Pad => sum = running_checksum(sum, record.summed),
                    Record::Unknown { .. } => return Ok(complete),
                    _ => {
                        pending += 1;
                        sum = running_checksum(sum, record.summed);
                    }
                }
            }
        }
        Ok(complete)
    }
}
