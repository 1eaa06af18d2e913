use std::fmt;

/// The access rights of peers to a [`Region`](crate::Region).
///
/// # Examples
///
/// ```
/// use rdmsg::RemoteAccess;
///
/// let access = RemoteAccess { read: true, atomic: true, ..RemoteAccess::NONE };
/// assert!(access.contains(RemoteAccess::READ) && !access.contains(RemoteAccess::WRITE));
/// assert_eq!(access.to_string(), "read, atomic");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "RDMA has these three rights")]
pub struct RemoteAccess {
    /// Whether peers may read, with [`OneSided::read`](crate::OneSided::read).
    pub read: bool,
    /// Whether peers may write, with [`OneSided::write`](crate::OneSided::write).
    pub write: bool,
    /// Whether peers may perform atomic operations:
    /// [`OneSided::fetch_add`](crate::OneSided::fetch_add) and
    /// [`compare_swap`](crate::OneSided::compare_swap).
    pub atomic: bool,
}

impl RemoteAccess {
    /// No rights, for memory that only operations of this side use.
    pub const NONE: Self = Self {
        read: false,
        write: false,
        atomic: false,
    };
    /// Reading only.
    pub const READ: Self = Self {
        read: true,
        ..Self::NONE
    };
    /// Writing only.
    pub const WRITE: Self = Self {
        write: true,
        ..Self::NONE
    };
    /// Atomic operations only.
    pub const ATOMIC: Self = Self {
        atomic: true,
        ..Self::NONE
    };
    /// All rights.
    pub const ALL: Self = Self {
        read: true,
        write: true,
        atomic: true,
    };

    /// Returns whether these rights include all rights of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        (self.read || !other.read) && (self.write || !other.write) && (self.atomic || !other.atomic)
    }

    /// Returns the bits of the rights in a [`RemoteRegion`](crate::RemoteRegion): 1 read, 2 write,
    /// 4 atomic.
    pub(crate) fn to_bits(self) -> u16 {
        u16::from(self.read) | u16::from(self.write) << 1 | u16::from(self.atomic) << 2
    }

    /// Returns the rights for bits from `to_bits`. Ignores other bits.
    pub(crate) fn from_bits(bits: u16) -> Self {
        Self {
            read: bits & 1 != 0,
            write: bits & 2 != 0,
            atomic: bits & 4 != 0,
        }
    }
}

impl fmt::Display for RemoteAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("nothing");
        }
        let mut before = "";
        for (is, name) in [
            (self.read, "read"),
            (self.write, "write"),
            (self.atomic, "atomic"),
        ] {
            if is {
                write!(f, "{before}{name}")?;
                before = ", ";
            }
        }
        Ok(())
    }
}
