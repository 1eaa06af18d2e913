use super::root::Root;

/// A Linux distribution. It determines the command that installs a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Debian,
    Ubuntu,
    Fedora,
    Other,
}

impl Distribution {
    pub(super) fn read(root: &Root) -> Self {
        let release = root.text("etc/os-release").unwrap_or_default();
        let value = |key: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let ids = format!("{} {}", value("ID="), value("ID_LIKE="));
        let is = |name: &str| ids.split_whitespace().any(|id| id == name);
        if is("ubuntu") {
            Self::Ubuntu
        } else if is("debian") {
            Self::Debian
        } else if is("fedora") || is("rhel") {
            Self::Fedora
        } else {
            Self::Other
        }
    }

    /// Returns the command that installs a package, given the names of the package on Debian and on
    /// Fedora.
    pub(super) fn install(self, debian: &str, fedora: &str) -> String {
        match self {
            Self::Debian | Self::Ubuntu | Self::Other => format!("apt install {debian}"),
            Self::Fedora => format!("dnf install {fedora}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::root::testing::Machine, *};

    #[test]
    fn distributions_are_recognized_by_id_like() {
        for (text, expected) in [
            ("ID=debian\nVERSION_ID=\"12\"\n", Distribution::Debian),
            (
                "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n",
                Distribution::Ubuntu,
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Distribution::Ubuntu,
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Distribution::Fedora,
            ),
            ("ID=arch\n", Distribution::Other),
        ] {
            let machine = Machine::new().file("etc/os-release", text);
            assert_eq!(Distribution::read(&machine.root()), expected, "{text}");
        }
    }
}
