//! [`with_defaults!`](crate::with_defaults): options whose defaults stand beside them.

/// A struct of options with its `Default`: each field has its default behind it, as `pub lock: bool = true,`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_defaults {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ty = $value:expr,)*
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$of_field])* $field_vis $field: $type,)*
        }

        impl Default for $name {
            #[allow(unused_doc_comments)] // the fields' conditions are needed here, too, and come with their documentation
            fn default() -> Self {
                $name {
                    $($(#[$of_field])* $field: $value,)*
                }
            }
        }
    };
}
