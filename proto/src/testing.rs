//! Helpers for all tests of `proto`.

use std::env;

use proptest::test_runner::{Config, RngSeed};

use super::ReadDepth;

/// The READ depth of most devices.
pub(super) const BOTH_WAYS: ReadDepth = ReadDepth {
    outgoing: 16,
    incoming: 16,
};

/// A configuration with this many random cases, the same ones in every run. `PROPTEST_CASES` and
/// `PROPTEST_RNG_SEED` in the environment try others.
pub(super) fn cases(cases: u32) -> Config {
    let of_environment = Config::default();
    Config {
        cases: match env::var_os("PROPTEST_CASES") {
            Some(_) => of_environment.cases,
            None => cases,
        },
        rng_seed: match of_environment.rng_seed {
            RngSeed::Random => RngSeed::Fixed(0x7264_6d73),
            fixed @ RngSeed::Fixed(_) => fixed,
        },
        failure_persistence: None,
        ..of_environment
    }
}
