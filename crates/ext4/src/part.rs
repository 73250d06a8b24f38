//! [`part!`]: a part that has no state of its own, only the parts that it calls.

/// Defines a struct that shares other parts, and a constructor `new` that takes each of them in the order of the fields.
///
/// `part! { pub struct Maps { alloc: Allocator, quota: Quota } }` has the fields `alloc: Arc<Allocator>` and `quota: Arc<Quota>`.
macro_rules! part {
    ($(#[$doc:meta])* pub struct $name:ident { $($vis:vis $field:ident: $part:ty,)* }) => {
        $(#[$doc])*
        pub struct $name {
            $($vis $field: std::sync::Arc<$part>,)*
        }

        impl $name {
            #[allow(clippy::too_many_arguments)] // one part each
            pub(crate) fn new($($field: &std::sync::Arc<$part>,)*) -> Self {
                $name { $($field: std::sync::Arc::clone($field),)* }
            }
        }
    };
}

pub(crate) use part;
