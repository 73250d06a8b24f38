//! Tests of the engine traits: one set for every format.
//!
//! A format implements [`Subject`] and calls [`engine_conformance!`](crate::engine_conformance), which makes a test of each case. A case
//! calls the engine as the vfs does, with the same locks, and compares the answers with what the traits promise. After each case the
//! volume is unmounted, and the subject's checker looks at it.
//!
//! Not tested here: what needs a vfs above ([`Host`](super::Host), [`Space::make_room`](super::Space::make_room)), and what no empty volume
//! has (encoded and encrypted files).

#[doc(hidden)]
pub mod attributes;
#[doc(hidden)]
pub mod data;
#[doc(hidden)]
pub mod falloc;
mod fixture;
#[doc(hidden)]
pub mod names;
mod on_device;
#[doc(hidden)]
pub mod space;
#[doc(hidden)]
pub mod volume;

pub use fixture::Fixture;
pub use on_device::OnDevice;

use super::Engine;
use blockwright_device::SharedDevice;
use std::sync::Arc;

/// What a case needs of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Size of the device.
    pub bytes: u64,
    /// Small files live in their inodes.
    pub inline_data: bool,
    /// Users and groups are counted, and limits are in force.
    pub quota: bool,
}

/// What follows when a volume is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It can be changed.
    ReadWrite,
    /// It cannot.
    ReadOnly,
}

/// A mounted volume of the format under test.
pub trait Subject {
    /// The engine.
    fn engine(&self) -> Arc<dyn Engine>;
    /// The device that file data is written to.
    fn device(&self) -> SharedDevice;
    /// Mounts again. The fixture has evicted all inodes and unmounted the engine.
    fn remount(&mut self, access: Access);
    /// Mounts a copy of the device as it is now, as after a crash. `None` if the subject keeps nothing on its device.
    fn crashed(&self) -> Option<Box<dyn Subject>>;
    /// Panics unless the unmounted volume is sound.
    fn check(&self);
}

/// Makes an empty volume and mounts it. `None` if the format has no volumes of this shape.
pub type Make = fn(Shape) -> Option<Box<dyn Subject>>;

/// Runs a case on a fresh volume.
///
/// # Panics
/// When the engine breaks a promise.
pub fn run(make: Make, shape: Shape, case: fn(&mut Fixture)) {
    let Some(subject) = make(shape) else {
        println!("not applicable: the format has no volume of {shape:?}");
        return;
    };
    let mut fixture = Fixture::new(subject);
    case(&mut fixture);
    fixture.finish();
}

/// An ordinary volume.
pub const PLAIN: Shape = Shape {
    bytes: 64 << 20,
    inline_data: false,
    quota: false,
};
/// One whose small files live in their inodes.
pub const INLINE: Shape = Shape {
    inline_data: true,
    ..PLAIN
};
/// One that counts what users have.
pub const QUOTA: Shape = Shape {
    quota: true,
    ..PLAIN
};

/// Makes a test of each case for the volumes that a [`Make`] gives.
#[macro_export]
macro_rules! engine_conformance {
    ($make:path) => {
        $crate::engine_conformance! { @cases $make,
            names: [
                created_names_are_found, listing_goes_on_at_any_cookie, listing_survives_removals,
                directories_know_their_parents, symlinks_keep_their_targets, unnamed_inodes_can_be_named,
                unnamed_inodes_are_freed, links_name_one_inode, unlinked_inodes_live_until_evicted,
                only_empty_directories_are_removed, renames_move_and_replace, renames_exchange_and_leave_whiteouts,
                names_are_bytes, many_names_are_found,
            ] PLAIN;
            attributes: [
                changes_persist, unused_numbers_are_stale, written_attributes_persist, stat_shows_attributes,
                extended_attributes_keep_values, extended_attributes_heed_the_mode, extended_attributes_have_a_namespace, creation_sets_extended_attributes,
                synced_inodes_survive_a_crash, durable_inodes_survive_a_crash,
            ] PLAIN;
            data: [
                holes_lie_between_extents, reserved_ranges_are_delayed, nothing_shows_before_commit, abandoned_writes_leave_holes,
                direct_writes_fill_holes, overwrites_stay_in_place, runs_are_covered_in_order, several_writes_commit_together,
                allocation_without_waiting_takes_all_or_nothing, truncation_frees_and_sets_times,
                open_ends_lie_inside_blocks, generations_change_when_blocks_go, files_have_a_largest_size,
            ] PLAIN;
            data: [inline_data_stays_in_the_inode, inline_data_leaves_the_inode] INLINE;
            falloc: [
                allocated_ranges_read_as_zeroes, unwritten_blocks_take_data, every_mode_changes_contents_as_it_says,
                sizes_are_kept_when_asked, refusals_come_before_changes,
            ] PLAIN;
            space: [
                reservations_count_as_used, reserving_twice_takes_once, only_fresh_holes_are_new, a_full_volume_keeps_its_promises,
                deleting_gives_room_back, early_and_late_allocation_take_data, trimming_keeps_data, volumes_without_quota_refuse_limits,
            ] PLAIN;
            space: [quota_counts_and_limits_blocks, quota_limits_inodes] QUOTA;
            volume: [
                formats_do_not_change, read_only_volumes_refuse_changes, tunables_take_their_own_values,
                synced_volumes_survive_a_crash, orphans_are_freed_after_a_crash, statistics_are_reported,
            ] PLAIN;
        }
    };
    (@cases $make:path, $($module:ident: [$($case:ident),* $(,)?] $shape:ident;)*) => {
        $($(
            #[test]
            fn $case() {
                use $crate::engine::conformance as suite;
                suite::run($make, suite::$shape, suite::$module::$case);
            }
        )*)*
    };
}
