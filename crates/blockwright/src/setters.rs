//! [`setters!`]: the methods of a builder that keep a value.

/// Public setters that take the builder and give it back: documentation, then `name(argument: Type) { field.path = value; }`. With `&mut` first, they
/// take it by reference.
macro_rules! setters {
    (&mut $($(#[$meta:meta])* $name:ident($argument:ident: $type:ty) { $($field:ident).+ = $value:expr; })*) => {
        $($(#[$meta])*
        pub fn $name(&mut self, $argument: $type) -> &mut Self {
            self.$($field).+ = $value;
            self
        })*
    };
    ($($(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*) {
        $($(#[$of_field:meta])* $($field:ident).+ = $value:expr;)+
    })*) => {
        $($(#[$meta])*
        #[must_use]
        pub fn $name(mut self, $($argument: $type),*) -> Self {
            $($(#[$of_field])* { self.$($field).+ = $value; })+
            self
        })*
    };
}
pub(crate) use setters;
