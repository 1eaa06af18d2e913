//! Judges whether attacks slow down the honest clients.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::victim::HonestClient;

/// Each honest client has a ratio: the 99th percentile of its operations' durations during attacks,
/// divided by the 99th percentile in quiet phases. The test fails if any ratio reaches this value.
const MAX_RATIO: f64 = 10.0;

/// Prints the medians of the honest clients' 99th percentiles. Fails if the medians during attacks
/// are too high. The medians are used because other load on this machine affects individual phases.
pub(super) fn compare(floor: Duration, clients: &[HonestClient]) -> Result<()> {
    let mut slow = Vec::new();
    for client in clients {
        let [quiet, attacks] = client.percentiles.clone().map(|mut all| {
            all.sort_unstable();
            all[all.len() / 2]
        });
        let ratio = attacks.as_secs_f64() / quiet.max(floor).as_secs_f64();
        println!(
            "attack: {client:<18} {quiet:>9.3?} quiet, {attacks:>9.3?} in attacks: {ratio:.2}"
        );
        if quiet == Duration::MAX || ratio >= MAX_RATIO {
            slow.push(client.to_string());
        }
    }
    let what = format!("clients without operations, or {MAX_RATIO} times slower in attacks");
    ensure!(slow.is_empty(), "{what}: {slow:?}");
    Ok(())
}
