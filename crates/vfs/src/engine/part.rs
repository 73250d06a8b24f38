//! [`part!`](crate::part): how the engines define their parts, and what a part gets when it is constructed.

/// Defines a part: a struct that shares the parts that it calls. Its constructor `new` takes each of them in the order of the fields.
///
/// `part! { pub struct Maps { alloc: Allocator, quota: Quota, } }` has the fields `alloc: Arc<Allocator>` and `quota: Arc<Quota>`.
///
/// State of its own comes behind a semicolon. It begins with the value that is given there, and is no argument of `new`:
///
/// ```
/// # struct Volume;
/// # use std::sync::{Arc, Mutex};
/// blockwright_vfs::part! {
///     /// Inodes without a name.
///     pub struct Orphans { volume: Volume, ; list: Mutex<Vec<u64>> = Mutex::default(), }
/// }
/// let orphans = Orphans::new(&Arc::new(Volume));
/// # let _ = &orphans.volume;
/// assert!(orphans.list.lock().unwrap().is_empty());
/// ```
#[macro_export]
macro_rules! part {
    (
        $(#[$doc:meta])* pub struct $name:ident {
            $($vis:vis $field:ident: $part:ty,)*
            $(; $($(#[$of_own:meta])* $own_vis:vis $own:ident: $own_type:ty = $value:expr,)*)?
        }
    ) => {
        $(#[$doc])*
        pub struct $name {
            $($vis $field: std::sync::Arc<$part>,)*
            $($($(#[$of_own])* $own_vis $own: $own_type,)*)?
        }

        impl $name {
            #[allow(clippy::too_many_arguments)] // one part each
            pub(crate) fn new($($field: &std::sync::Arc<$part>,)*) -> Self {
                $name {
                    $($field: std::sync::Arc::clone($field),)*
                    $($($own: $value,)*)?
                }
            }
        }
    };
}
