/// Defines a type whose values are sets of flags, stored as a `u32`. The type has named constants,
/// set operations, `Display` and `Debug`.
///
/// Unnamed bits are preserved, because a device may report flags that this crate does not define.
macro_rules! bit_flags {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident;
        $( $(#[$flag_meta:meta])* $flag:ident = $value:expr; )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            $( $(#[$flag_meta])* pub const $flag: Self = Self($value); )*

            /// The empty set.
            #[must_use]
            pub const fn empty() -> Self {
                Self(0)
            }

            /// Creates a set from the bits of the C API. Unnamed bits are preserved.
            #[must_use]
            pub const fn from_bits(bits: u32) -> Self {
                Self(bits)
            }

            /// Returns the set as the bits of the C API.
            #[must_use]
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Returns whether no flag is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Returns whether all flags of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the flags that are set in `self` or in `other`.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Returns the flags that are set in `self` but not in `other`.
            #[must_use]
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        /// Lists the names of the flags, and unnamed bits in hexadecimal.
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let names: &[(Self, &str)] = &[$( (Self::$flag, stringify!($flag)), )*];
                let mut rest = *self;
                let mut separator = "";
                for &(flag, name) in names {
                    if rest.contains(flag) {
                        write!(f, "{separator}{name}")?;
                        separator = " | ";
                        rest = rest.difference(flag);
                    }
                }
                match (rest.is_empty(), separator) {
                    (true, "") => f.write_str("none"),
                    (true, _) => Ok(()),
                    (false, _) => write!(f, "{separator}{:#x}", rest.0),
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

pub(in crate::verbs) use bit_flags;
