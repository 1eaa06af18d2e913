use std::fmt;

use crate::{
    addresses::{Addresses, Shown, ToAddresses},
    error::Error,
};

/// The addresses or the host name that a client dials. Each dial looks up the host name again.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    Addresses(Addresses),
}

impl Target {
    pub(super) fn new(address: &impl ToAddresses) -> Result<Self, Error> {
        match address.name() {
            Some(name) => Ok(Self::Name(name)),
            None => address.to_addresses().map(Self::Addresses),
        }
    }

    /// Returns the addresses, or `None` for a host name that each dial looks up.
    pub(super) fn addresses(&self) -> Option<&Addresses> {
        match self {
            Self::Name(_) => None,
            Self::Addresses(addresses) => Some(addresses),
        }
    }
}

impl ToAddresses for Target {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        match self {
            Self::Name(name) => name.to_addresses(),
            Self::Addresses(addresses) => Ok(addresses.clone()),
        }
    }

    fn name(&self) -> Option<String> {
        match self {
            Self::Name(name) => Some(name.clone()),
            Self::Addresses(_) => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Addresses(addresses) => match addresses.as_slice() {
                [one] => Shown(*one).fmt(f),
                several => f
                    .debug_list()
                    .entries(several.iter().map(|address| Shown(*address)))
                    .finish(),
            },
        }
    }
}
