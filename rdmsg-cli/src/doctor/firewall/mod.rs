//! Determines whether this host's firewall lets packets of RoCE pass: reads its rules, and applies
//! them to such a packet.

#[expect(clippy::module_inception, reason = "the object is the firewall")]
mod firewall;
mod ruleset;

pub(in crate::doctor) use self::firewall::Firewall;
