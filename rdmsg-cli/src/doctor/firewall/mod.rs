//! Checks whether this host's firewall lets RoCE packets pass: reads the rules, and applies them to
//! a simulated packet.

#[expect(clippy::module_inception, reason = "the object is the firewall")]
mod firewall;
mod ruleset;

pub(in crate::doctor) use self::firewall::Firewall;
