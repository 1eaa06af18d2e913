//! Whether this host's firewall lets packets of RoCE pass: its rules, and their effect on a packet.

#[expect(clippy::module_inception, reason = "the object is the firewall")]
mod firewall;
mod ruleset;

pub(in crate::doctor) use self::firewall::Firewall;
