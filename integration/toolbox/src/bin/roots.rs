//! What the README says to type, in systems that have nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

/// Builds a new crate in bare Debian 12, Debian 13 and Ubuntu 24.04, by the README's lines
///
/// Makes the smallest system that debootstrap makes, and types in a copy of it what the README's
/// section "In a crate of your own" says, line by line; rdmsg comes from this checkout, as
/// `--path`. The program is the README's first one. It has to print "hello". Debian 12 also builds
/// the default features. Rust is this machine's.
///
/// With --demo it types the first of the README's two commands instead, in a clone of what is
/// committed here. That says how long it took until the first message had come back.
///
/// Takes root, debootstrap, and the archives of both distributions. The systems stay in
/// target/roots, for the next time. Ends 0 if it worked in all of them.
#[derive(Parser)]
#[command(
    name = "integration/roots",
    bin_name = "integration/roots",
    verbatim_doc_comment
)]
struct Options {
    /// Run integration/demo, which takes two minutes in each.
    #[arg(long)]
    demo: bool,

    /// Only these.
    #[arg(value_enum)]
    systems: Vec<System>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    Bookworm,
    Trixie,
    Noble,
}

/// Who types.
const USER: &str = r"
set -euo pipefail
export PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root CARGO_HOME=/root/cargo
";

/// What is typed before the README's lines: nothing of this is in the copy yet.
const PRELUDE: &str = r#"
export DEBIAN_FRONTEND=noninteractive
sudo() { if [ "$1" = apt ]; then shift; apt-get -q -q -y "$@" >/dev/null; else "$@"; fi; }
cargo() { if [ "$1" = add ]; then shift 2; command cargo add -q --path /rdmsg "$@"; else
          command cargo "$@"; fi; }
cd /root
apt-get -q -q update
"#;

fn main() -> ExitCode {
    let Options { demo, mut systems } = Options::parse();
    if systems.is_empty() {
        systems = System::value_variants().to_vec();
    }
    let mut failed = false;
    for system in systems {
        let (works, result) = if demo {
            ("integration/demo works", system.demo())
        } else {
            ("a new crate builds and runs", system.build())
        };
        match result {
            Ok(()) => println!("{}: {works}", system.title()),
            Err(error) => {
                failed = true;
                println!("{}: {error:#}", system.title());
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

impl System {
    fn title(self) -> &'static str {
        match self {
            Self::Bookworm => "Debian 12",
            Self::Trixie => "Debian 13",
            Self::Noble => "Ubuntu 24.04",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Noble => "noble",
        }
    }

    /// The folder with the system, which is made where it is missing.
    fn root(self) -> Result<PathBuf> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let folder = Path::new(&target).join("roots");
        let root = folder.join(self.name());
        if root.exists() {
            return Ok(root);
        }
        fs::create_dir_all(&folder)?;
        let partial = folder.join(format!(".{}", self.name()));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        eprintln!("roots: making {}", root.display());
        let mut command = Command::new("debootstrap");
        command.args(["--variant=minbase", "--include=ca-certificates"]);
        match self {
            Self::Bookworm | Self::Trixie => {
                command.arg(self.name()).arg(&partial);
                command.arg("http://deb.debian.org/debian");
            }
            // Debian has neither its keys nor, in older versions, a script of this name.
            Self::Noble => {
                command.args(["--no-check-gpg", "--components=main,universe", "noble"]);
                command
                    .arg(&partial)
                    .arg("http://archive.ubuntu.com/ubuntu");
                command.arg("/usr/share/debootstrap/scripts/gutsy");
            }
        }
        let output = command
            .output()
            .context("cannot run debootstrap: apt install debootstrap")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let last = said.lines().last().unwrap_or_default();
        ensure!(
            output.status.success(),
            "debootstrap: {}: {last}",
            output.status
        );
        fs::rename(&partial, &root)?;
        Ok(root)
    }

    fn demo(self) -> Result<()> {
        self.type_lines(&format!("{USER}cd /root/rdmsg\nintegration/demo\n"), "")
    }

    fn build(self) -> Result<()> {
        let readme = fs::read_to_string("README.md")?;
        let section = readme
            .split("\n## ")
            .find(|text| text.starts_with("In a crate of your own"));
        let section = section.context("README.md has no section on a crate of one's own")?;
        let blocks = blocks(section, "sh");
        let [new, linked] = &blocks[..] else {
            anyhow::bail!("README.md: {} blocks of lines to type", blocks.len())
        };
        let linker = section
            .split('`')
            .find(|text| text.starts_with("sudo apt install gcc"));
        let linker = linker.context("README.md does not say how to install a linker")?;
        let main = blocks_of_program(&readme)?;
        let mut script = format!("{USER}{PRELUDE}{linker}\n{new}");
        let run = "cp /rdmsg-main.rs src/main.rs\ntest \"$(cargo run -q)\" = hello\n";
        script += run;
        if self == Self::Bookworm {
            script += linked;
            // What was added without the default features is added with them now.
            let edited = "sed -i /^rdmsg/d Cargo.toml\n";
            script = script.replacen(linked, &format!("{edited}{linked}"), 1);
            script += run;
        }
        self.type_lines(&script, &main)
    }

    /// Types lines in a copy of the system, of which nothing is left.
    fn type_lines(self, script: &str, main: &str) -> Result<()> {
        let root = self.root()?.canonicalize()?;
        let checkout = std::env::current_dir()?;
        let rust = Command::new("rustc")
            .args(["--print", "sysroot"])
            .output()?;
        let rust = String::from_utf8(rust.stdout)?;
        let rust = rust.trim();
        // In a namespace of its own, with which the mounts go.
        let mounts = r#"
set -e
copy=$(mktemp -d)
mount -t tmpfs -o size=8g copy "$copy"
mkdir "$copy"/up "$copy"/work "$copy"/root
mount -t overlay -o lowerdir="$ROOT",upperdir="$copy"/up,workdir="$copy"/work root "$copy"/root
cd "$copy"/root
mkdir -p opt/rust rdmsg proc sys dev
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sys sys
mount --bind -o ro "$RUST" opt/rust
mount --bind -o ro "$CHECKOUT" rdmsg
git clone -q "$CHECKOUT" root/rdmsg
# What this machine trusts, and how it finds others.
cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/
cp /etc/resolv.conf etc/
printf %s "$MAIN" >rdmsg-main.rs
printf %s "$SCRIPT" >script
status=0
chroot . /bin/bash /script || status=$?
cd /
umount -l "$copy"
rmdir "$copy"
exit $status
"#;
        let status = Command::new("unshare")
            .args(["--mount", "sh", "-c", mounts])
            .env("ROOT", &root)
            .env("RUST", rust)
            .env("CHECKOUT", &checkout)
            .env("MAIN", main)
            .env("SCRIPT", script)
            .env_remove("LIBCLANG_PATH")
            .env_remove("CARGO_TARGET_DIR")
            .status()
            .context("cannot run unshare")?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

/// The README's first program.
fn blocks_of_program(readme: &str) -> Result<String> {
    let all = blocks(readme, "rust");
    all.into_iter().next().context("README.md has no program")
}

/// The blocks of code in a page, in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = page.split(&fence).skip(1);
    parts
        .filter_map(|part| Some(part.split_once("```")?.0.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_language() {
        let page = "a\n```sh\none\ntwo\n```\nb\n```rust\nfn\n```\n```sh\nthree\n```\n";
        assert_eq!(blocks(page, "sh"), ["one\ntwo\n", "three\n"]);
        assert_eq!(blocks_of_program(page).unwrap(), "fn\n");
    }
}
