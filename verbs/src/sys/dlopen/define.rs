//! Macros that declare C types. Tests compare the declarations with the bindings that are generated
//! from the C headers.

/// Declares C structures and unions.
///
/// An `opaque` type is used only behind pointers. Newer versions of the library append fields to a
/// `growing` structure, and prepend fields to a `growing_in_front` structure. The shorter
/// declarations of this crate remain valid, because either the library allocates such a structure,
/// or the caller passes the structure's size or the set of its valid fields to the library.
macro_rules! types {
    ($(
        $(#[$attribute:meta])*
        $kind:tt $name:ident { $( $field:ident: $type:ty ),* $(,)? }
    )*) => {
        $( $crate::sys::dlopen::define::declare! {
            $kind $name [$(#[$attribute])*] { $( $field: $type, )* }
        } )*

        #[cfg(all(test, feature = "linked"))]
        #[test]
        fn types_match_the_headers() {
            use $crate::sys::{dlopen::define::{compare, layout}, linked};
            $( compare(
                stringify!($kind $name),
                layout!($name, $($field)*),
                layout!(linked::$name, $($field)*),
            ); )*
        }
    };
}

macro_rules! declare {
    (opaque $name:ident [$($attributes:tt)*] {}) => {
        $($attributes)*
        #[allow(dead_code, reason = "complete declaration, partly unused")]
        #[repr(C)]
        pub(crate) struct $name([u8; 0]);
    };
    (union $name:ident [$($attributes:tt)*] { $( $field:ident: $type:ty, )* }) => {
        $($attributes)*
        #[allow(dead_code, reason = "complete declaration, partly unused")]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) union $name { $( pub(crate) $field: $type, )* }
    };
    ($kind:tt $name:ident [$($attributes:tt)*] { $( $field:ident: $type:ty, )* }) => {
        $($attributes)*
        #[allow(dead_code, reason = "complete declaration, partly unused")]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $( pub(crate) $field: $type, )* }
        $crate::sys::dlopen::define::all_fields! { $kind $name $($field)* }
    };
}

/// Makes the compilation of the tests fail if the headers contain a field that the declaration of a
/// `struct` lacks. The headers may contain further fields of a `growing` structure.
macro_rules! all_fields {
    (struct $name:ident $($field:ident)*) => {
        #[cfg(all(test, feature = "linked"))]
        const _: fn($crate::sys::linked::$name) =
            |$crate::sys::linked::$name { $( $field: _, )* }| ();
    };
    ($kind:tt $name:ident $($field:ident)*) => {};
}

/// Declares C enumerations. Each enumeration becomes a module of constants, as in the generated
/// bindings.
macro_rules! enumerations {
    ($( $name:ident { $( $constant:ident = $value:literal ),* $(,)? } )*) => {
        $( #[allow(dead_code, reason = "only tests use some of them")] pub(crate) mod $name {
            pub(crate) type Type = libc::c_uint;
            $( pub(crate) const $constant: Type = $value; )*
        } )*

        #[cfg(all(test, feature = "linked"))]
        #[test]
        fn enumerations_match_the_headers() {
            use $crate::sys::linked;
            $(
                let _: $name::Type = linked::$name::Type::MIN;
                $( assert_eq!($name::$constant, linked::$name::$constant); )*
            )*
        }
    };
}

/// Declares C enumerations whose values are combined as bits.
macro_rules! bits {
    ($( $name:ident { $( $constant:ident = $value:expr ),* $(,)? } )*) => {
        $(
            #[derive(Clone, Copy)]
            pub(crate) struct $name(pub(crate) libc::c_uint);

            #[allow(dead_code, reason = "only tests use some of them")]
            impl $name { $( pub(crate) const $constant: Self = Self($value); )* }

            impl std::ops::BitOr for $name {
                type Output = Self;

                fn bitor(self, other: Self) -> Self {
                    Self(self.0 | other.0)
                }
            }
        )*

        #[cfg(all(test, feature = "linked"))]
        #[test]
        fn bits_match_the_headers() {
            use $crate::sys::linked;
            $( $( assert_eq!($name::$constant.0, linked::$name::$constant.0); )* )*
        }
    };
}

/// Declares a C enumeration that C functions take as an argument. The enumeration becomes a Rust
/// enum, so that callers can pass only declared values.
macro_rules! argument_enum {
    ($name:ident { $( $constant:ident = $value:literal ),* $(,)? }) => {
        #[allow(dead_code, reason = "complete declaration, partly unused")]
        #[repr(u32)]
        #[derive(Clone, Copy)]
        pub(crate) enum $name { $( $constant = $value, )* }

        #[cfg(all(test, feature = "linked"))]
        #[test]
        fn argument_enum_matches_the_header() {
            use $crate::sys::linked;
            $( assert_eq!($name::$constant as u32, linked::$name::$constant as u32); )*
        }
    };
}

pub(super) use {all_fields, argument_enum, bits, declare, enumerations, types};

#[cfg(all(test, feature = "linked"))]
pub(super) use self::compared::{
    Field, Layout, compare, layout, placeholder, without_module_paths,
};

#[cfg(all(test, feature = "linked"))]
mod compared {
    use std::any::type_name;

    /// The layout of a type in memory.
    #[derive(Debug, PartialEq)]
    pub(in crate::sys::dlopen) struct Layout {
        pub(in crate::sys::dlopen) size: usize,
        pub(in crate::sys::dlopen) align: usize,
        pub(in crate::sys::dlopen) fields: Vec<Field>,
    }

    #[derive(Debug, PartialEq)]
    pub(in crate::sys::dlopen) struct Field {
        name: &'static str,
        offset: isize,
        size: usize,
        type_name: String,
    }

    impl Field {
        /// Describes the field `name` at `offset`. The third argument is never called; it only
        /// determines the field's type.
        pub(in crate::sys::dlopen) fn new<T, F>(
            name: &'static str,
            offset: usize,
            _: fn(*const T) -> *const F,
        ) -> Self {
            Self {
                name,
                offset: offset.cast_signed(),
                size: size_of::<F>(),
                type_name: without_module_paths(type_name::<F>()),
            }
        }
    }

    /// Returns the name of a type without its module path.
    pub(in crate::sys::dlopen) fn without_module_paths(name: &str) -> String {
        let words = name.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let last = |word: &str| word.rsplit("::").next().unwrap_or_default().to_owned();
        words.map(last).collect()
    }

    macro_rules! layout {
        ($type:ty, $($field:ident)*) => {
            $crate::sys::dlopen::define::Layout {
                size: size_of::<$type>(),
                align: align_of::<$type>(),
                fields: vec![$( $crate::sys::dlopen::define::Field::new(
                    stringify!($field),
                    std::mem::offset_of!($type, $field),
                    // SAFETY: this closure is never called; it only determines the field's type.
                    |start: *const $type| unsafe { &raw const (*start).$field },
                ) ),*],
            }
        };
    }

    /// Expands to `_` for each argument, so that the compiler infers the argument's type.
    macro_rules! placeholder {
        ($argument:ident) => {
            _
        };
    }

    pub(in crate::sys::dlopen) use {layout, placeholder};

    /// Panics if the layout of a declaration (`ours`) differs from that in the headers (`theirs`).
    /// A growing structure may be larger in the headers. Opaque types are not compared. A field of
    /// the type `Operation` matches every pointer to an unsafe C function. `what` is the kind and
    /// the name of the type.
    pub(in crate::sys::dlopen) fn compare(what: &str, ours: Layout, mut theirs: Layout) {
        let kind = what.split(' ').next().unwrap_or_default();
        if kind == "opaque" {
            return;
        }
        let operation = without_module_paths(type_name::<super::super::Operation>());
        for (ours, theirs) in ours.fields.iter().zip(&mut theirs.fields) {
            if ours.type_name == operation && theirs.type_name.starts_with("Option<unsafe extern") {
                theirs.type_name.clone_from(&operation);
            }
        }
        let grown = theirs.size.checked_sub(ours.size);
        let grown = grown.unwrap_or_else(|| panic!("{what} is smaller in the headers: {theirs:?}"));
        match kind {
            "growing" => theirs.size = ours.size,
            "growing_in_front" => {
                theirs.size = ours.size;
                for field in &mut theirs.fields {
                    field.offset -= grown.cast_signed();
                }
            }
            _ => {}
        }
        assert_eq!(ours, theirs, "{what} must have the layout of the headers");
    }

    #[test]
    fn missing_or_retyped_field_is_detected() {
        #[repr(C)]
        struct Theirs {
            a: u32,
            b: u16,
            c: u32,
        }
        #[repr(C)]
        struct Missing {
            a: u32,
            c: u32,
        }
        #[repr(C)]
        struct Retyped {
            a: u32,
            b: i16,
            c: u32,
        }
        #[repr(C)]
        struct Shorter {
            a: u32,
            b: u16,
        }
        let is_same = |what: &str, ours: fn() -> Layout, theirs: fn() -> Layout| {
            let (what, ours, theirs) = (what.to_owned(), ours(), theirs());
            std::panic::catch_unwind(|| compare(&what, ours, theirs)).is_ok()
        };
        let all: fn() -> Layout = || layout!(Theirs, a b c);
        let (first_two, first_and_last) = (|| layout!(Theirs, a b), || layout!(Theirs, a c));
        assert!(is_same("struct T", all, all));
        assert!(!is_same(
            "struct T",
            || layout!(Missing, a c),
            first_and_last
        ));
        assert!(!is_same("struct T", || layout!(Retyped, a b c), all));
        assert!(!is_same("struct T", || layout!(Shorter, a b), first_two));
        assert!(is_same("growing T", || layout!(Shorter, a b), first_two));
        assert!(!is_same(
            "growing T",
            || layout!(Missing, a c),
            first_and_last
        ));
    }
}
