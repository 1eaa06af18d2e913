//! Parses the output of callgrind.

use anyhow::{Context, Result};

/// Returns the total number of instructions that the program has executed.
pub(crate) fn total(profile: &str) -> Result<u64> {
    let totals = profile.lines().rfind(|line| line.starts_with("totals: "));
    let number = totals.and_then(|line| line["totals: ".len()..].trim().parse().ok());
    number.context("callgrind wrote no totals")
}

/// The cost of all calls of a function, including the functions that it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The number of instructions, without those in the driver and libibverbs.
    pub(crate) instructions: u64,
    /// The number of calls to the allocator.
    pub(crate) allocations: u64,
}

/// Returns the cost of each function in `functions`. The profile must be made with
/// `--separate-callers` and `--compress-strings=no`. In such a profile, the names of a function's
/// callers follow the name of the function, as in `malloc'Vec::new'bench::calls::send'main`.
pub(crate) fn costs(profile: &str, functions: &[String]) -> Vec<Cost> {
    let mut costs = vec![Cost::default(); functions.len()];
    let mut is_of_driver = false;
    // The index of the measured function to which the costs on the following lines are added. These
    // are costs of the function itself or of one of its callees.
    let mut within = None;
    let mut called = "";
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        match line.split_once('=').unwrap_or(("", line)) {
            ("ob", object) => is_of_driver = is_driver(object),
            ("fn", name) => within = place(name, functions),
            ("cfn", name) => called = name,
            ("calls", counts) => {
                let allocating = place(called, functions).filter(|_| is_allocator(called));
                if let (Some(place), Some(count)) = (allocating, number(counts, 0)) {
                    costs[place].allocations += count;
                }
                // The next line contains the cost of the callee. Skip this line, because the
                // callee's own lines contain the same cost.
                lines.next();
            }
            // A line with costs contains the source line and the number of executed instructions.
            ("", line) if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) => {
                if let (Some(place), Some(count)) = (within, number(line, 1))
                    && !is_of_driver
                {
                    costs[place].instructions += count;
                }
            }
            _ => {}
        }
    }
    costs
}

fn number(line: &str, at: usize) -> Option<u64> {
    line.split_whitespace().nth(at)?.parse().ok()
}

/// Returns the index of the first of `functions` that `name` contains, either as the function
/// itself or as one of its callers.
fn place(name: &str, functions: &[String]) -> Option<usize> {
    let is_there = |function: &String| name.split('\'').any(|caller| caller == function);
    functions.iter().position(is_there)
}

fn is_allocator(name: &str) -> bool {
    let name = name.split(['\'', '@']).next().unwrap_or(name);
    let allocators = ["malloc", "calloc", "realloc", "posix_memalign"];
    allocators.contains(&name)
}

/// Returns true if an object file is libibverbs, a driver in the folder of libibverbs, or a library
/// of the mlx4 or mlx5 driver.
fn is_driver(object: &str) -> bool {
    object.contains("/libibverbs") || object.contains("/libmlx")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
version: 1
events: Ir
summary: 70

ob=/tmp/bench
fl=???
fn=bench::calls::send'main
0 10
cob=/usr/lib/libc.so.6
cfn=malloc'bench::calls::send'main
calls=3 0
0 30
0 5

fn=rdmsg::Message::drop'bench::calls::release'main
0 6
cob=/usr/lib/libibverbs/librxe-rdmav34.so
cfn=0x1230'rdmsg::Message::drop'bench::calls::release'main
calls=3 0
0 21

ob=/usr/lib/libibverbs/librxe-rdmav34.so
fn=0x1230'rdmsg::Message::drop'bench::calls::release'main
0 21

ob=/usr/lib/libc.so.6
fn=malloc'bench::calls::send'main
0 20
+3 10
totals: 72
";

    #[test]
    fn each_function_has_what_it_calls_but_for_the_driver() {
        let names = ["send", "receive", "release"].map(|name| format!("bench::calls::{name}"));
        let cost = |instructions, allocations| Cost {
            instructions,
            allocations,
        };
        let expected = [cost(45, 3), cost(0, 0), cost(6, 0)];
        assert_eq!(costs(PROFILE, &names), expected);
        assert_eq!(total(PROFILE).unwrap(), 72);
        assert!(total("").is_err());
    }
}
