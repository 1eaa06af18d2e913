use std::{fs, sync::OnceLock};

/// Returns whether relaxed ordering of PCIe writes is faster on this machine.
pub(crate) fn prefers_relaxed_ordering() -> bool {
    static PREFERS: OnceLock<bool> = OnceLock::new();
    *PREFERS.get_or_init(|| prefers(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
}

/// Returns true if `cpuinfo` describes a processor for which UCX prefers relaxed ordering
/// (`ucs_cpu_prefer_relaxed_order` in `src/ucs/arch/cpu.h`): Fujitsu A64FX, or AMD EPYC Naples,
/// Rome or Milan. Genoa is included, because UCX could not distinguish Genoa from Milan. Intel's
/// Emerald Rapids is not included, because UCX added this processor but later removed it for host
/// memory. See the pull requests 4952, 8062, 9097, 10955 and 11532 of openucx/ucx.
fn prefers(cpuinfo: &str) -> bool {
    let value = |name: &str| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut named = fields.filter(|(field, _)| field.trim() == name);
        named.next().map_or("", |(_, value)| value.trim())
    };
    let is_epyc = value("vendor_id") == "AuthenticAMD"
        && matches!(value("cpu family"), "23" | "25")
        && value("model name").contains("EPYC");
    let is_a64fx = value("CPU implementer") == "0x46" && value("CPU part") == "0x001";
    is_epyc || is_a64fx
}

#[cfg(test)]
mod tests {
    use super::prefers;

    fn x86(vendor: &str, family: u32, name: &str) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 49\nmodel \
             name\t: {name}\n\nprocessor\t: 1\nvendor_id\t: {vendor}\n"
        )
    }

    #[test]
    fn listed_processors_prefer_relaxed_ordering() {
        let arm = |implementer, part| {
            format!("processor\t: 0\nCPU implementer\t: {implementer}\nCPU part\t: {part}\n")
        };
        for (cpuinfo, expected) in [
            (
                x86("AuthenticAMD", 23, "AMD EPYC 7742 64-Core Processor"),
                true,
            ),
            (
                x86("AuthenticAMD", 25, "AMD EPYC 9654 96-Core Processor"),
                true,
            ),
            (x86("AuthenticAMD", 25, "AMD Ryzen 9 5950X"), false),
            (x86("AuthenticAMD", 15, "AMD EPYC"), false),
            (
                x86("GenuineIntel", 6, "INTEL(R) XEON(R) PLATINUM 8592+"),
                false,
            ),
            (arm("0x46", "0x001"), true),
            (arm("0x41", "0xd4f"), false),
            (String::new(), false),
        ] {
            assert_eq!(prefers(&cpuinfo), expected, "{cpuinfo}");
        }
    }
}
