use serde_json::Value;

/// The UDP port of RoCE v2.
const PORT: u64 = 4791;

/// The maximum depth to which this program follows jumps between chains. The kernel allows 16.
const MAX_DEPTH: u32 = 16;

/// The nftables rules, parsed from the output of `nft --json list ruleset`.
#[derive(Clone, Debug, Default)]
pub(in crate::doctor) struct Ruleset {
    chains: Vec<Chain>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::doctor) struct Chain {
    pub(super) family: String,
    pub(super) table: String,
    pub(super) name: String,
    /// The hook from which the kernel enters the chain. `None` if the chain is only the target of
    /// jumps.
    hook: Option<String>,
    drops_by_default: bool,
}

#[derive(Clone, Debug)]
struct Rule {
    family: String,
    table: String,
    chain: String,
    expressions: Vec<Value>,
}

/// The direction of the examined packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// Incoming packets.
    Input,
    /// Outgoing packets.
    Output,
}

/// The effect of a base chain on a RoCE packet. A base chain is a chain with a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    Passes,
    Drops {
        chain: &'a Chain,
        by: &'static str,
    },
    /// The effect depends on a rule that this program cannot interpret.
    Unclear {
        chain: &'a Chain,
    },
}

/// The result of applying the rules of a chain to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Accepted,
    Dropped,
    /// The packet continues with the next rule of the calling chain.
    Returned,
    Unclear,
}

/// Whether a rule matches the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fits {
    Yes,
    No,
    Perhaps,
}

/// The known properties of a RoCE packet.
#[derive(Clone, Copy, Debug)]
struct Packet<'a> {
    hook: Hook,
    interface: &'a str,
}

impl Ruleset {
    pub(super) fn parse(json: &[u8]) -> serde_json::Result<Self> {
        let value: Value = serde_json::from_slice(json)?;
        let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
        let mut this = Self::default();
        for object in value["nftables"].as_array().into_iter().flatten() {
            if let Some(chain) = object.get("chain") {
                this.chains.push(Chain {
                    family: text(chain, "family"),
                    table: text(chain, "table"),
                    name: text(chain, "name"),
                    hook: chain["hook"].as_str().map(str::to_owned),
                    drops_by_default: chain["policy"] == "drop",
                });
            } else if let Some(rule) = object.get("rule") {
                this.rules.push(Rule {
                    family: text(rule, "family"),
                    table: text(rule, "table"),
                    chain: text(rule, "chain"),
                    expressions: rule["expr"].as_array().cloned().unwrap_or_default(),
                });
            }
        }
        Ok(this)
    }

    /// Applies each chain with this hook to a RoCE packet, and returns the verdicts. The packet
    /// passes only if all these chains accept it.
    pub(super) fn chain_verdicts(&self, hook: Hook, interface: &str) -> Vec<Verdict<'_>> {
        let packet = Packet { hook, interface };
        let entered = self.chains.iter().filter(|chain| {
            chain.hook.as_deref() == Some(hook.name())
                && ["ip", "ip6", "inet"].contains(&&*chain.family)
        });
        entered.map(|chain| self.verdict(chain, packet)).collect()
    }

    /// Returns whether the rules were created by ufw.
    pub(super) fn are_of_ufw(&self) -> bool {
        self.chains
            .iter()
            .any(|chain| chain.name.starts_with("ufw-"))
    }

    fn verdict<'a>(&'a self, chain: &'a Chain, packet: Packet<'_>) -> Verdict<'a> {
        match self.walk(chain, packet, 0) {
            End::Accepted => Verdict::Passes,
            End::Dropped => Verdict::Drops {
                chain,
                by: "a rule",
            },
            End::Unclear => Verdict::Unclear { chain },
            End::Returned if chain.drops_by_default => Verdict::Drops {
                chain,
                by: "the policy",
            },
            End::Returned => Verdict::Passes,
        }
    }

    fn walk(&self, chain: &Chain, packet: Packet<'_>, depth: u32) -> End {
        if depth > MAX_DEPTH {
            return End::Unclear;
        }
        // The common effect of the earlier rules that may match the packet, or `None` if there was
        // no such rule. If these rules have different effects, the result is `Unclear`.
        let mut perhaps: Option<End> = None;
        let of_chain = |rule: &&Rule| {
            (&rule.family, &rule.table, &rule.chain) == (&chain.family, &chain.table, &chain.name)
        };
        for rule in self.rules.iter().filter(of_chain) {
            let fits = packet.fits(&rule.expressions);
            if fits == Fits::No {
                continue;
            }
            let Some(end) = self.end_of(rule, packet, depth) else {
                continue;
            };
            match (fits, perhaps) {
                (Fits::Yes, None) => return end,
                (Fits::Yes, Some(other)) if other == end => return end,
                (Fits::Yes, Some(_)) => return End::Unclear,
                (Fits::Perhaps | Fits::No, None) => perhaps = Some(end),
                (Fits::Perhaps | Fits::No, Some(other)) if other == end => {}
                (Fits::Perhaps | Fits::No, Some(_)) => return End::Unclear,
            }
        }
        let default = if chain.hook.is_some() && chain.drops_by_default {
            End::Dropped
        } else {
            End::Accepted
        };
        match perhaps {
            Some(end) if chain.hook.is_none() || end != default => End::Unclear,
            Some(_) | None => End::Returned,
        }
    }

    /// Returns the effect of a matching rule on a packet, or `None` if the packet continues with
    /// the next rule.
    fn end_of(&self, rule: &Rule, packet: Packet<'_>, depth: u32) -> Option<End> {
        for expression in &rule.expressions {
            let has = |key: &str| expression.get(key).is_some();
            if has("accept") {
                return Some(End::Accepted);
            }
            if has("drop") || has("reject") {
                return Some(End::Dropped);
            }
            if has("return") {
                return Some(End::Returned);
            }
            if has("vmap") || has("queue") || has("xt") {
                return Some(End::Unclear);
            }
            for (key, comes_back) in [("jump", true), ("goto", false)] {
                let Some(target) = expression[key]["target"].as_str() else {
                    continue;
                };
                let chain = self.chains.iter().find(|chain| {
                    (&chain.family, &chain.table) == (&rule.family, &rule.table)
                        && chain.name == target
                });
                let end = chain.map_or(End::Unclear, |chain| self.walk(chain, packet, depth + 1));
                return match end {
                    End::Returned if comes_back => None,
                    end => Some(end),
                };
            }
        }
        None
    }
}

impl Packet<'_> {
    fn fits(&self, expressions: &[Value]) -> Fits {
        let mut all = Fits::Yes;
        for expression in expressions {
            let Some(of) = expression.get("match") else {
                // Whether a rate limit matches depends on the number of packets. `xt` is an
                // iptables extension, which this program cannot interpret.
                if expression.get("limit").is_some() || expression.get("xt").is_some() {
                    all = Fits::Perhaps;
                }
                continue;
            };
            match self.fits_match(of) {
                Fits::No => return Fits::No,
                Fits::Perhaps => all = Fits::Perhaps,
                Fits::Yes => {}
            }
        }
        all
    }

    fn fits_match(&self, of: &Value) -> Fits {
        let (left, right) = (&of["left"], &of["right"]);
        let payload = |part: &str| left["payload"][part].as_str().unwrap_or_default();
        let is = match (payload("protocol"), payload("field")) {
            ("udp" | "th", "dport") => has_number(right, PORT),
            ("udp" | "th", _) => return Fits::Perhaps,
            ("tcp" | "icmp" | "icmpv6" | "sctp" | "dccp" | "ah" | "esp", _) => return Fits::No,
            ("ip", "protocol") | ("ip6", "nexthdr") => has_text(right, "udp"),
            _ => match (left["meta"]["key"].as_str(), left["ct"]["key"].as_str()) {
                (Some("l4proto"), _) => has_text(right, "udp"),
                (Some("iifname" | "iif"), _) => self.passes(Hook::Input, right),
                (Some("oifname" | "oif"), _) => self.passes(Hook::Output, right),
                // A reply to a RoCE packet is sent to port 4791 and not to the packet's source
                // port, so connection tracking treats each RoCE packet as `new`.
                (_, Some("state")) => has_text(right, "new"),
                _ => None,
            },
        };
        match (is, of["op"].as_str()) {
            (Some(is), Some("!=")) => Fits::of(!is),
            (Some(is), Some("==" | "in")) => Fits::of(is),
            _ => Fits::Perhaps,
        }
    }

    fn passes(&self, hook: Hook, names: &Value) -> Option<bool> {
        if self.hook == hook {
            has_text(names, self.interface)
        } else {
            Some(false)
        }
    }
}

impl Fits {
    fn of(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl Chain {
    pub(super) fn is_of_firewalld(&self) -> bool {
        self.table == "firewalld"
    }
}

/// Returns true if a value is this number, or a set or a range that contains the number. Returns
/// `None` for a symbolic name, because its number is unknown.
fn has_number(value: &Value, number: u64) -> Option<bool> {
    if let Some(one) = value.as_u64() {
        return Some(one == number);
    }
    if let Some([first, last]) = value["range"].as_array().map(Vec::as_slice) {
        return Some((first.as_u64()?..=last.as_u64()?).contains(&number));
    }
    let all = value["set"].as_array().or_else(|| value.as_array())?;
    let mut is = Some(false);
    for one in all {
        match has_number(one, number) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => is = None,
        }
    }
    is
}

/// Returns true if a value is this text, a prefix of the text followed by `*`, or a set that
/// contains the text. Returns `None` for a named set such as `@ports`, because its elements are
/// unknown.
fn has_text(value: &Value, text: &str) -> Option<bool> {
    if let Some(one) = value.as_str() {
        return match one.strip_suffix('*') {
            _ if one.starts_with('@') => None,
            Some(start) => Some(text.starts_with(start)),
            None => Some(one == text),
        };
    }
    let all = value["set"].as_array().or_else(|| value.as_array())?;
    let mut is = Some(false);
    for one in all {
        match has_text(one, text) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => is = None,
        }
    }
    is
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(name: &str, hook: Option<&str>, policy: &str) -> Value {
        let mut chain = json!({"family": "inet", "table": "filter", "name": name});
        if let Some(hook) = hook {
            chain["hook"] = hook.into();
            chain["policy"] = policy.into();
        }
        json!({"chain": chain})
    }

    fn rule(chain: &str, expressions: Value) -> Value {
        json!({"rule": {
            "family": "inet", "table": "filter", "chain": chain, "expr": expressions
        }})
    }

    fn udp(ports: Value) -> Value {
        json!({"match": {
            "op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": ports
        }})
    }

    fn meta(key: &str, right: &str) -> Value {
        json!({"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}})
    }

    /// Applies a ruleset to a RoCE packet. The ruleset contains the given objects and a chain
    /// `input` with this policy. Returns the effect.
    fn treated(policy: &str, objects: &[Value]) -> String {
        let mut all = vec![
            json!({"metainfo": {"version": "1.0.6"}}),
            chain("input", Some("input"), policy),
        ];
        all.extend_from_slice(objects);
        let rules = Ruleset::parse(json!({"nftables": all}).to_string().as_bytes()).unwrap();
        let verdicts = rules.chain_verdicts(Hook::Input, "eth0");
        assert_eq!(verdicts.len(), 1);
        match &verdicts[0] {
            Verdict::Passes => "passes".into(),
            Verdict::Drops { by, .. } => (*by).into(),
            Verdict::Unclear { .. } => "unclear".into(),
        }
    }

    #[test]
    fn policy_applies_if_no_rule_matches() {
        let web = rule(
            "input",
            json!([udp(json!({"set": [80, 443]})), {"accept": null}]),
        );
        let tcp = json!({"match": {
            "op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 4791
        }});
        let tcp = rule("input", json!([tcp, {"drop": null}]));
        let state = json!({"match": {
            "op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]
        }});
        let known = rule("input", json!([state, {"accept": null}]));
        let lo = rule("input", json!([meta("iifname", "lo"), {"accept": null}]));
        let all = [web, tcp, known, lo];
        assert_eq!(treated("accept", &all), "passes");
        assert_eq!(treated("drop", &all), "the policy");
    }

    #[test]
    fn first_matching_rule_decides() {
        let accept = |ports| rule("input", json!([udp(ports), {"accept": null}]));
        let drop = rule(
            "input",
            json!([meta("l4proto", "udp"), {"counter": {}}, {"drop": null}]),
        );
        for ports in [
            json!(4791),
            json!({"set": [53, 4791]}),
            json!({"range": [4000, 5000]}),
            json!({"set": [{"range": [4000, 5000]}]}),
        ] {
            let all = [accept(ports.clone()), drop.clone()];
            assert_eq!(treated("drop", &all), "passes", "{ports}");
        }
        assert_eq!(
            treated("accept", &[accept(json!(53)), drop.clone()]),
            "a rule"
        );
        assert_eq!(treated("accept", &[drop, accept(json!(4791))]), "a rule");
    }

    #[test]
    fn chains_lead_to_each_other() {
        let jump = rule("input", json!([{"jump": {"target": "more"}}]));
        let more = chain("more", None, "");
        let back = rule("more", json!([udp(json!(53)), {"accept": null}]));
        let all = [jump.clone(), more.clone(), back];
        assert_eq!(treated("drop", &all), "the policy");
        let reject = rule("more", json!([{"reject": {"type": "icmp"}}]));
        assert_eq!(
            treated("accept", &[jump.clone(), more.clone(), reject]),
            "a rule"
        );
        let circle = rule("more", json!([{"jump": {"target": "more"}}]));
        assert_eq!(treated("accept", &[jump, more, circle]), "unclear");
    }

    #[test]
    fn unknown_rules_are_not_judged() {
        let source = json!({"match": {
            "op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
            "right": "10.0.0.1"
        }});
        let some = rule("input", json!([source, {"drop": null}]));
        assert_eq!(treated("accept", std::slice::from_ref(&some)), "unclear");
        assert_eq!(
            treated("drop", &[some]),
            "the policy",
            "the packet must be dropped whether or not the rule matches"
        );
        let named = rule("input", json!([udp(json!("@ports")), {"accept": null}]));
        assert_eq!(treated("drop", &[named]), "unclear");
        let map = rule("input", json!([{"vmap": {"key": {}, "data": "@verdicts"}}]));
        assert_eq!(treated("accept", &[map]), "unclear");
    }
}
