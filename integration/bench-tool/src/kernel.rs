//! Parses counters of the kernel, and counters of system calls.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// Returns the total time since boot during which the processor was not idle.
pub(crate) fn work() -> Result<Duration> {
    let timers = fs::read_to_string("/proc/timer_list")?;
    let now = nanos(&timers, "now at ")?;
    let idle = nanos(&timers, ".idle_sleeptime :")?;
    Ok(Duration::from_nanos(now.saturating_sub(idle)))
}

/// Returns the number of system calls in the summary that strace writes. In the summary's final
/// line, the number of calls is in the fourth column. The first three columns contain times: in
/// percent, in seconds, and in microseconds per call.
pub(crate) fn calls(summary: &str) -> Result<u64> {
    let total = summary.lines().rfind(|line| line.ends_with(" total"));
    let number = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    number.context("strace wrote no total")
}

/// Returns the number that follows the first `word` in /proc/timer_list. The host must have only
/// one processor, because the file repeats some words for each processor.
fn nanos(timers: &str, word: &str) -> Result<u64> {
    let rest = timers.split_once(word).map(|(_, rest)| rest);
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("/proc/timer_list does not contain {word:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_strace_has_the_number_of_calls() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
                       ------ ----------- ----------- --------- --------- ---------------\n \
                       40.00    0.000012           1        12         2 read\n\
                       ------ ----------- ----------- --------- --------- ---------------\n\
                       100.00    0.000030           1        34         2 total\n";
        assert_eq!(calls(summary).unwrap(), 34);
        assert!(calls("").is_err());
    }

    #[test]
    fn kernel_tells_nanoseconds() {
        let timers = "Timer List Version: v0.9\nnow at 2739730090 nsecs\n\n\
                      cpu: 0\n  .nohz_mode      : 2\n  .idle_sleeptime : 197603205 nsecs\n";
        assert_eq!(nanos(timers, "now at ").unwrap(), 2_739_730_090);
        assert_eq!(nanos(timers, ".idle_sleeptime :").unwrap(), 197_603_205);
        assert!(nanos(timers, "idle_calls").is_err());
    }
}
