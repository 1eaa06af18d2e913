use std::process::Stdio;

use super::ruleset::{Hook, Ruleset, Verdict};
use crate::doctor::{
    devices::Device,
    finding::{Finding, as_root},
    root::{Root, command},
    surroundings::Surroundings,
};

const SUBJECT: &str = "firewall";

/// The UDP port of RoCE v2.
const PORT: &str = "4791";

const WHY: &str = "software RoCE sends UDP packets to port 4791 in both directions, and the host's \
                   firewall filters them like other packets";

/// The firewall of this host.
#[derive(Clone, Debug)]
pub(in crate::doctor) enum Firewall {
    /// The kernel has no firewall rules.
    Absent,
    Rules(Ruleset),
    /// The kernel may have firewall rules, but this program cannot read them, for this reason.
    Unreadable(Unreadable),
}

#[derive(Clone, Debug)]
pub(in crate::doctor) enum Unreadable {
    NotInstalled,
    Failed(String),
}

impl Firewall {
    pub(in crate::doctor) fn read(root: &Root) -> Self {
        let legacy = root.text("proc/net/ip_tables_names");
        let has_legacy = legacy.is_some_and(|names| !names.is_empty());
        // Without the module nf_tables there are no nftables rules. In this case, do not run `nft`,
        // because a query would load the module.
        if !root.has("sys/module/nf_tables") {
            return if has_legacy {
                Self::Unreadable(Unreadable::Failed(
                    "the rules belong to iptables-legacy: `iptables-save` shows them".into(),
                ))
            } else {
                Self::Absent
            };
        }
        let listed = command("nft").and_then(|mut nft| {
            nft.args(["--json", "list", "ruleset"]);
            nft.stdin(Stdio::null()).output().ok()
        });
        let Some(listed) = listed else {
            return Self::Unreadable(Unreadable::NotInstalled);
        };
        if !listed.status.success() {
            let said = String::from_utf8_lossy(&listed.stderr);
            let line = said.lines().next().unwrap_or("nft failed").to_owned();
            return Self::Unreadable(Unreadable::Failed(line));
        }
        match Ruleset::parse(&listed.stdout) {
            Ok(rules) => Self::Rules(rules),
            Err(error) => Self::Unreadable(Unreadable::Failed(error.to_string())),
        }
    }

    pub(in crate::doctor) fn judge(
        &self,
        devices: &[Device],
        around: &Surroundings,
    ) -> Vec<Finding> {
        let software = devices.iter().filter(|device| device.is_software());
        let interfaces: Vec<&str> = software.flat_map(Device::interfaces).collect();
        if interfaces.is_empty() {
            // The packets of an adapter bypass the host's firewall.
            return Vec::new();
        }
        let rules = match self {
            Self::Absent => {
                let what = "the kernel has no firewall rules";
                return vec![Finding::ok(SUBJECT, what)];
            }
            Self::Rules(rules) => rules,
            Self::Unreadable(Unreadable::NotInstalled) => {
                let install = around.distribution().install("nftables", "nftables");
                let finding = Finding::note(
                    SUBJECT,
                    "cannot determine whether the firewall passes UDP port 4791",
                )
                .because(WHY)
                .command(as_root(&install))
                .hint("the doctor reads the firewall rules with `nft`");
                return vec![finding];
            }
            Self::Unreadable(Unreadable::Failed(why)) => {
                let what =
                    format!("cannot determine whether the firewall passes UDP port 4791: {why}");
                let finding = Finding::note(SUBJECT, what).because(WHY);
                return vec![if nix::unistd::geteuid().is_root() {
                    finding
                } else {
                    finding.command("sudo rdmsg doctor")
                }];
            }
        };
        let mut findings = Vec::new();
        for hook in [Hook::Input, Hook::Output] {
            for interface in &interfaces {
                let verdicts = rules.chain_verdicts(hook, interface).into_iter();
                findings.extend(verdicts.filter_map(|verdict| finding_of(verdict, rules)));
            }
        }
        findings.dedup();
        if findings.is_empty() {
            let what = "the firewall rules let UDP port 4791 pass, in and out";
            findings.push(Finding::ok(SUBJECT, what));
        }
        findings
    }
}

fn finding_of(verdict: Verdict<'_>, rules: &Ruleset) -> Option<Finding> {
    match verdict {
        Verdict::Passes => None,
        Verdict::Unclear { chain } => {
            let what = format!(
                "chain {} may drop UDP port 4791: it has rules that the doctor does not understand",
                chain.name
            );
            let look = format!(
                "nft list chain {} {} {}",
                chain.family, chain.table, chain.name
            );
            Some(
                Finding::note(SUBJECT, what)
                    .because(WHY)
                    .hint(format!("`{}` shows it", as_root(&look))),
            )
        }
        Verdict::Drops { chain, by } => {
            let (family, table, name) = (&chain.family, &chain.table, &chain.name);
            let what = format!("{by} of {family} {table} {name} drops UDP port 4791");
            let finding = Finding::error(SUBJECT, what).because(WHY);
            Some(if chain.is_of_firewalld() {
                finding
                    .command(as_root(&format!("firewall-cmd --add-port={PORT}/udp")))
                    .keep(as_root(&format!(
                        "firewall-cmd --permanent --add-port={PORT}/udp"
                    )))
            } else if rules.are_of_ufw() {
                finding.command(as_root(&format!("ufw allow {PORT}/udp")))
            } else {
                let insert = format!("nft insert rule {family} {table} {name}");
                finding
                    .command(as_root(&format!("{insert} udp dport {PORT} accept")))
                    .hint("add the rule to /etc/nftables.conf, too, to keep it after a reboot")
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        devices, distribution::Distribution, finding::State, interfaces::Interfaces,
        root::testing::Machine,
    };

    fn judged(firewall: &Firewall) -> Vec<Finding> {
        let software = Machine::new().file("sys/class/infiniband/rxe0/parent", "eth0\n");
        let devices = devices::read(&software.root(), &Interfaces::default());
        firewall.judge(&devices, &Surroundings::of(Distribution::Debian, false))
    }

    #[test]
    fn a_kernel_without_rules_lets_everything_pass() {
        let firewall = Firewall::read(&Machine::new().root());
        assert_eq!(judged(&firewall)[0].state, State::Ok);
    }

    #[test]
    fn a_chain_that_drops_gets_a_rule_at_its_head() {
        let rules = br#"{"nftables": [
            {"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter",
                       "hook": "input", "prio": 0, "policy": "drop"}}]}"#;
        let findings = judged(&Firewall::Rules(Ruleset::parse(rules).unwrap()));
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].commands,
            [as_root(
                "nft insert rule inet filter input udp dport 4791 accept"
            )]
        );
        let firewalld = String::from_utf8(rules.to_vec()).unwrap();
        let firewalld = firewalld.replace("\"table\": \"filter\"", "\"table\": \"firewalld\"");
        let rules = Ruleset::parse(firewalld.as_bytes()).unwrap();
        let findings = judged(&Firewall::Rules(rules));
        assert_eq!(
            findings[0].commands,
            [as_root("firewall-cmd --add-port=4791/udp")]
        );
    }

    #[test]
    fn adapters_are_not_behind_it() {
        let adapter = Machine::new().file("sys/class/infiniband/mlx5_0/ports/1/state", "");
        let devices = devices::read(&adapter.root(), &Interfaces::default());
        let around = Surroundings::of(Distribution::Debian, false);
        assert!(Firewall::Absent.judge(&devices, &around).is_empty());
    }
}
