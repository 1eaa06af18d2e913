/// Defines a newtype around an integer. The newtype has named constants, conversions from and to
/// the integer, the method `name`, and implementations of `Display` and `Debug`.
///
/// Any value of the integer is valid. A value without a name is displayed as `unknown` with its
/// number.
#[doc(hidden)]
#[macro_export]
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($int:ty);
        $( $(#[$variant_meta:meta])* $variant:ident = $value:expr; )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name($int);

        impl $name {
            $( $(#[$variant_meta])* pub const $variant: Self = Self($value); )*

            /// Creates a value from a number that a C function returned. Every number is valid.
            #[must_use]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }

            /// Returns the number that C functions use for this value.
            #[must_use]
            pub const fn raw(self) -> $int {
                self.0
            }

            /// Returns the constant's name, or `None` if this crate defines no constant for the
            /// value.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some(stringify!($variant)), )*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown ({})", self.0),
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}
