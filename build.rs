//! Says what is missing to build the bindings, all of it at once.
//!
//! It is the build script of rdma-sys that needs it, and stops at the first thing that it does not
//! find. This one needs nothing itself, so it is compiled and done long before that one's generator
//! is: where something is missing, its word comes first.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
};

/// What rdma-sys asks pkg-config for, and the packages that have it.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libibverbs", "1.8.28", "libibverbs-dev"),
    ("librdmacm", "1.2.28", "librdmacm-dev"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    // Where to look for another machine's libraries is rdma-sys's to find out.
    if env::var_os("TARGET") != env::var_os("HOST") {
        return;
    }
    let mut missing = Vec::new();
    if !runs(Command::new(pkg_config()).arg("--version")) {
        missing.push("pkg-config");
    }
    let no_pkg_config = !missing.is_empty();
    for (library, version, package) in LIBRARIES {
        let mut query = Command::new(pkg_config());
        query.arg("--exists").arg(format!("{library} >= {version}"));
        if no_pkg_config || !runs(&mut query) {
            missing.push(package);
        }
    }
    let needed = !missing.is_empty();
    if !has_libclang() {
        missing.push("libclang-dev");
    }
    let packages = missing.join(" ");
    if needed {
        eprintln!(
            "rdmsg links librdmacm and libibverbs and generates bindings for them, and for that this machine lacks: {packages}.\n\
             On Debian and Ubuntu:\n\n    sudo apt install {packages}\n\n\
             Elsewhere the packages are those of rdma-core's development files (rdma-core-devel), of libclang (clang-devel or \
             clang-libs), 11 to 15, and pkg-config (pkgconf). Libraries in a place of their own are found by PKG_CONFIG_PATH."
        );
        process::exit(1);
    }
    if !missing.is_empty() {
        // It may be where only the generator looks.
        println!(
            "cargo:warning=no libclang found; if the bindings cannot be generated, install {packages} or set LIBCLANG_PATH"
        );
    }
}

fn pkg_config() -> PathBuf {
    env::var_os("PKG_CONFIG").map_or_else(|| "pkg-config".into(), PathBuf::from)
}

fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Whether there is a libclang where the generator looks first.
fn has_libclang() -> bool {
    if ["LIBCLANG_PATH", "LLVM_CONFIG_PATH"]
        .iter()
        .any(|name| env::var_os(name).is_some())
        || runs(Command::new("llvm-config").arg("--version"))
    {
        return true;
    }
    [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/lib64",
    ]
    .iter()
    .any(|folder| holds_libclang(Path::new(folder), 2))
}

/// Whether there is one in a folder, or in one so many levels below.
fn holds_libclang(folder: &Path, below: u32) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        (name.starts_with("libclang") && name.contains(".so"))
            || (below > 0 && entry.path().is_dir() && holds_libclang(&entry.path(), below - 1))
    })
}
