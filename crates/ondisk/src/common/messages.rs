//! Error types as tables: a variant, its fields and its message in one row.
//!
//! `thiserror` does the same, at the price of three more crates for every build.

/// An enum whose variants have their messages behind them, with fields in braces: `Variant { field: Type } = "message {field}",`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_messages {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($variant:ident $({ $($field:ident: $type:ty),* })? = $message:literal,)*
    }) => {
        $(#[$meta])*
        pub enum $name {
            $($variant $({ $($field: $type),* })?),*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? => write!(f, $message)),*
                }
            }
        }

        impl std::error::Error for $name {}
    };
}
