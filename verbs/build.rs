//! Reports, in one message, all missing packages that are needed to generate the bindings.
//!
//! The build script of rdma-sys needs these packages, but stops at the first missing package. Also,
//! it runs only after the slow compilation of the generator bindgen. This build script has no
//! dependencies. Therefore cargo runs it earlier, and the complete report appears first.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
};

/// The libraries that rdma-sys requests from pkg-config: name, minimum version, and the Debian
/// package that contains the library.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libibverbs", "1.8.28", "libibverbs-dev"),
    ("librdmacm", "1.2.28", "librdmacm-dev"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Without the feature `linked`, the program opens the libraries at run time. Then the build
    // needs no packages.
    if env::var_os("CARGO_FEATURE_LINKED").is_none() {
        return;
    }
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    // In a cross build, rdma-sys needs the target's libraries, but pkg-config would find the host's
    // libraries. Therefore this script checks nothing.
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
            "rdmsg links librdmacm and libibverbs and generates bindings for them, but this host \
             lacks the packages: {packages}.\n\
             On Debian and Ubuntu:\n\n    sudo apt install {packages}\n\n\
             On other distributions install rdma-core-devel, clang-devel or clang-libs (libclang \
             11 to 15), and pkgconf. Set PKG_CONFIG_PATH if the libraries are not in a standard \
             directory. To build without these packages, disable the feature linked. Then the \
             program opens the libraries when it runs."
        );
        process::exit(1);
    }
    if !missing.is_empty() {
        // This is only a warning, because the generator also searches directories that this script
        // does not check.
        println!(
            "cargo:warning=found no libclang; if the bindings cannot be generated, \
             install {packages} or set LIBCLANG_PATH"
        );
    }
}

fn pkg_config() -> PathBuf {
    env::var_os("PKG_CONFIG").map_or_else(|| "pkg-config".into(), PathBuf::from)
}

fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Returns true if an environment variable or llvm-config can tell the generator where libclang is,
/// or if libclang is in one of the usual directories.
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

/// Returns true if libclang is in `folder`, or in a subfolder at most `depth` levels deep.
fn holds_libclang(folder: &Path, depth: u32) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        (name.starts_with("libclang") && name.contains(".so"))
            || (depth > 0 && entry.path().is_dir() && holds_libclang(&entry.path(), depth - 1))
    })
}
