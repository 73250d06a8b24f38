//! The f2fs engine under whole volumes: through the library, as programs use it, with Linux and f2fs-tools as oracles.
//!
//! What one part promises is tested beside that part; what every engine promises, in `conformance.rs`.

use blockwright_test_support as common;
use blockwright_test_support::uml;

mod compressed;
mod compressed_linux;
mod devices;
mod disabled;
mod disabled_linux;
mod full;
mod logs;
mod merge;
mod newest_pack;
mod nodes_ahead;
mod packs;
mod quota;
mod read_while_written;
mod reading;
mod recovery;
mod recovery_cost;
mod room;
mod runs;
mod shift;
