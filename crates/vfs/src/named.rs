//! [`named!`](crate::named): enums whose variants have names.

/// Defines an enum in rows: what a variant means, the variant, and its name. The enum gets the list `ALL`, and `name` and `from_name`.
///
/// ```
/// blockwright_vfs::named! {
///     /// How a mount ended.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum End {
///         /// By a user.
///         Unmounted => "unmounted",
///         /// By a failure.
///         Aborted => "aborted",
///     }
/// }
/// assert_eq!(End::ALL.map(End::name), ["unmounted", "aborted"]);
/// assert_eq!(End::from_name("aborted"), Some(End::Aborted));
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$head:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $variant:ident => $name:literal,)* }) => {
        $(#[$head])*
        pub enum $enum { $($(#[$doc])* $variant,)* }

        impl $enum {
            /// All variants, in order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The variant of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|variant| variant.name() == name)
            }
        }
    };
}
