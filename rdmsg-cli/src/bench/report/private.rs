use std::{
    cmp::Reverse,
    env,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use nix::unistd::{User, geteuid, getuid};
use serde_json::Value;

use crate::doctor;

const ADDRESS: &str = "(address)";
const HOME: &str = "(home)";

/// A hexadecimal number with at least this many digits is considered a hardware address. A MAC
/// address has 12 digits.
const IDENTIFIER: usize = 12;

/// Replaces private data in texts: IP and hardware addresses, GIDs, GUIDs, names of hosts and
/// users, and paths of home directories.
#[derive(Debug)]
pub(super) struct Private {
    /// The names to replace, with their replacements. Longer names come first.
    names: Vec<(String, &'static str)>,
    homes: Vec<String>,
    /// Version numbers that look like IP addresses and must not be replaced.
    versions: Vec<String>,
}

/// The names and the home directories of the user of this process.
#[derive(Debug, Default)]
struct Identity {
    users: Vec<String>,
    homes: Vec<PathBuf>,
}

impl Identity {
    fn of_this_process() -> Self {
        let ids = [getuid(), geteuid()];
        let entries = ids.map(|id| User::from_uid(id).ok().flatten());
        let entries: Vec<User> = entries.into_iter().flatten().collect();
        let of_variables = |names: &[&str]| -> Vec<String> {
            names
                .iter()
                .filter_map(|name| env::var(name).ok())
                .collect()
        };
        let mut this = Self {
            users: of_variables(&["USER", "LOGNAME", "SUDO_USER"]),
            homes: env::home_dir().into_iter().collect(),
        };
        for entry in entries {
            this.users.push(entry.name);
            this.homes.push(entry.dir);
        }
        this
    }
}

impl Private {
    /// Creates a value that replaces the names of both hosts, and the names and home directories of
    /// the user who runs this process. `peer` is the peer's name on the command line.
    pub(super) fn new(examined: &doctor::Report, peer: &str) -> Self {
        let about = examined.there.as_ref().and_then(|it| it.about.as_ref());
        let typed = match peer.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => host,
            _ => peer,
        };
        let of_peer = about.map(|about| about.host.as_str());
        let hosts = [Some(examined.here.host.as_str()), of_peer, Some(typed)];
        let of_peer = about.into_iter().flat_map(|about| &about.hardware);
        let hardware = examined.here.hardware.iter().chain(of_peer);
        let versions = hardware.flat_map(|it| [&it.firmware, &it.board]).flatten();
        Self::with(
            Identity::of_this_process(),
            hosts.into_iter().flatten(),
            versions.map(String::as_str),
        )
    }

    fn with<'a>(
        identity: Identity,
        hosts: impl IntoIterator<Item = &'a str>,
        versions: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let is_address = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let hosts = hosts.into_iter().filter(|host| !is_address(host));
        // Hide two forms of each host name: the full name, and the name without its domain.
        let hosts = hosts.flat_map(|host| [host, host.split('.').next().unwrap_or(host)]);
        let hosts = hosts.map(|name| (name.to_owned(), "(host)"));
        let users = identity.users.into_iter().map(|name| (name, "(user)"));
        let mut names: Vec<_> = hosts.chain(users).collect();
        names.retain(|(name, _)| !name.is_empty());
        names.sort_by_key(|(name, _)| Reverse(name.len()));
        let homes = identity.homes.into_iter();
        let homes = homes.filter_map(|home| home.into_os_string().into_string().ok());
        let versions = versions
            .into_iter()
            .filter(|it| addresses_hidden(it) != **it);
        Self {
            names,
            // Leave out the root directory, because it is a part of every absolute path.
            homes: homes.filter(|home| home.len() > 1).collect(),
            versions: versions.map(Into::into).collect(),
        }
    }

    /// Replaces private data in all strings of a JSON value. The keys of objects are constants of
    /// this program, so they contain no private data.
    pub(super) fn hide_in(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hide(text),
            Value::Array(values) => values.iter_mut().for_each(|it| self.hide_in(it)),
            Value::Object(members) => members.values_mut().for_each(|it| self.hide_in(it)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn hide(&self, text: &str) -> String {
        let text = self.homes_hidden(text);
        let version = self.versions.iter().find_map(|version| {
            let at = find_word(&text, version, 0)?;
            Some((at, at + version.len()))
        });
        match version {
            Some((start, end)) => {
                let before = self.names_hidden(&addresses_hidden(&text[..start]));
                before + &text[start..end] + &self.hide(&text[end..])
            }
            None => self.names_hidden(&addresses_hidden(&text)),
        }
    }

    fn homes_hidden(&self, text: &str) -> String {
        let is_end = |c: char| c.is_whitespace() || "\"'`,;()".contains(c);
        let homes = self.homes.iter().map(String::as_str).chain(["/home/"]);
        homes.fold(text.to_owned(), |text, home| {
            let mut parts = text.split(home);
            let mut hidden = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                hidden += HOME;
                hidden += &part[part.find(is_end).unwrap_or(part.len())..];
            }
            hidden
        })
    }

    fn names_hidden(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, replacement) in &self.names {
            let mut from = 0;
            while let Some(at) = find_word(&text, name, from) {
                text.replace_range(at..at + name.len(), replacement);
                from = at + replacement.len();
            }
        }
        text
    }
}

/// Searches the text for `name` as a whole word, beginning at byte `from` and ignoring ASCII case.
/// Returns the byte offset of the word.
fn find_word(text: &str, name: &str, from: usize) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let name = name.to_ascii_lowercase();
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let mut found = lower[from..].match_indices(&name).map(|(at, _)| from + at);
    found.find(|at| {
        !is_word(lower[..*at].chars().next_back())
            && !is_word(lower[at + name.len()..].chars().next())
    })
}

/// Recognises IP addresses, hardware addresses, GIDs and GUIDs by their form, and replaces them.
fn addresses_hidden(text: &str) -> String {
    let is_v4 = |run: &str, _: bool| run.parse::<Ipv4Addr>().is_ok();
    let text = replaced(text, |c| c.is_ascii_digit() || c == '.', is_v4);
    // An address with colons must be a whole word. Therefore no part of a Rust path such as
    // `rdmsg::Config` is replaced: the run `::C` is not a whole word.
    let has_colons = |run: &str, is_word: bool| {
        let is_number = |part: &str| part.len() <= 4 && !part.contains('.');
        is_word && run.matches(':').count() > 1 && run.split(':').all(is_number)
    };
    let text = replaced(
        &text,
        |c| c.is_ascii_hexdigit() || c == ':' || c == '.',
        has_colons,
    );
    replaced(
        &text,
        |c| c.is_ascii_hexdigit(),
        |run, _| run.len() >= IDENTIFIER,
    )
}

/// Replaces all addresses in a text. Splits the text into runs of characters for which `is_part`
/// returns true. Calls `is_address` with each run, first unchanged and then without the punctuation
/// at its start and end. The second argument of `is_address` is true if the run is a whole word.
/// `is_address` returns true if its first argument is an address.
fn replaced(
    text: &str,
    is_part: impl Fn(char) -> bool,
    is_address: impl Fn(&str, bool) -> bool,
) -> String {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(&is_part) {
        let (before, run) = rest.split_at(start);
        let end = run.find(|c| !is_part(c)).unwrap_or(run.len());
        let (run, after) = run.split_at(end);
        let is_word = !is_letter(before.chars().next_back()) && !is_letter(after.chars().next());
        out += before;
        let trimmed = [run, run.trim_matches('.'), run.trim_matches(['.', ':'])];
        match trimmed.into_iter().find(|run| is_address(run, is_word)) {
            Some(address) => out += &run.replacen(address, ADDRESS, 1),
            None => out += run,
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private() -> Private {
        let identity = Identity {
            users: vec!["mallory".into(), String::new()],
            homes: vec!["/srv/people/mallory".into(), "/".into()],
        };
        let hosts = ["Quarry-7.mine.example", "pit", "10.8.0.1"];
        Private::with(identity, hosts, ["230.0.157.0", "20.31.1014"])
    }

    #[test]
    fn addresses_of_each_form_are_replaced() {
        for address in [
            "10.8.0.1",
            "fd08::1",
            "::1",
            "fd08::",
            "::ffff:10.8.0.1",
            "0000:0000:0000:0000:0000:ffff:0a08:0001",
            "fe80:0000:0000:0000:5054:00ff:fe12:3456",
            "52:54:00:12:34:56",
            "0002:c903:00a1:b2c3",
            "0002c90300a1b2c3",
        ] {
            for text in [
                address.to_owned(),
                format!("no message to {address}: it, or ({address}), or [{address}]:7471."),
                format!("at {address}."),
            ] {
                let hidden = addresses_hidden(&text);
                assert!(!hidden.contains(address), "{text}: {hidden}");
                assert!(hidden.contains(ADDRESS), "{text}: {hidden}");
            }
        }
        assert_eq!(addresses_hidden("enx525400123456"), "enx(address)");
        assert_eq!(addresses_hidden("0x0002c90300a1b2c3"), "0x(address)");
        assert_eq!(
            addresses_hidden("from 10.8.0.1:7471."),
            "from (address):7471."
        );
    }

    #[test]
    fn versions_numbers_and_paths_of_rust_stay() {
        for text in [
            "kernel 6.1.0-56-amd64, firmware 20.31.1014, board MT_0000000223",
            "4096 bytes at 16.0 GT/s PCIe, UDP port 4791, 2: 3",
            "see rdmsg::Config::default",
        ] {
            assert_eq!(addresses_hidden(text), text);
        }
        assert_eq!(
            private().hide("10.8.0.1 has firmware 230.0.157.0, and 230.0.157.01 230.0.157.1 not"),
            "(address) has firmware 230.0.157.0, and 230.0.157.01 (address) not"
        );
    }

    #[test]
    fn names_and_homes_are_replaced_as_words() {
        let private = private();
        for (text, hidden) in [
            ("quarry-7 and QUARRY-7.mine.example", "(host) and (host)"),
            ("is pit up? pitfall", "is (host) up? pitfall"),
            ("of mallory, mallory_2", "of (user), (user)_2"),
            ("no /srv/people/mallory/k/a.pem: x", "no (home) x"),
            ("`/home/eve/lib.so`", "`(home)`"),
            ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
        ] {
            assert_eq!(private.hide(text), hidden);
        }
    }

    #[test]
    fn texts_at_any_depth_are_replaced() {
        let mut value = serde_json::json!({"a": [{"b": "10.8.0.1", "c": 10}], "d": null});
        private().hide_in(&mut value);
        let expected = serde_json::json!({"a": [{"b": "(address)", "c": 10}], "d": null});
        assert_eq!(value, expected);
    }
}
