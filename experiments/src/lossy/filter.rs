//! Random packet loss, by a rule of nftables in each of the two namespaces.
//!
//! The rule sees UDP packets at their arrival. The sender's kernel has then cut its runs of datagrams
//! into packets, because the devices accept no runs, and nothing has joined packets yet. So the rule
//! decides on every packet separately. The control plane is TCP and loses nothing.
//!
//! Rules belong to their namespace and end with it.

use petrel_command::failure::Failure;
use serde_json::Value;

use petrel_bench::measure::test_bed::TestBed;
use petrel_bench::measure::window::Packets;

/// The unit of loss probabilities, as a divisor.
pub(super) const WHOLE: u32 = 1_000_000_000;

/// The table's name, used only in the command's namespaces.
const TABLE: &str = "petrel_loss";

/// Sets the loss of arriving packets at the two ends, in parts per billion, and resets the counters.
pub(super) fn set(test_bed: &TestBed, loss_ppb: u32) -> Result<(), Failure> {
    let rules = rules(loss_ppb);
    let set = move || petrel_netns::nft(&rules).map_err(not_filtered);
    test_bed.in_each_thread(set).map(|_| ())
}

/// Returns the counts of the two ends since the loss was set.
pub(super) fn count(test_bed: &TestBed) -> Result<Packets, Failure> {
    let counts = test_bed.in_each_thread(|| {
        let list = ["-j", "list", "counters", "table", "ip", TABLE];
        let text = petrel_netns::run("nft", &list, "").map_err(Failure::because)?;
        parse(&text).ok_or_else(|| Failure::because(format!("`nft` printed: {text}")))
    })?;
    let dropped_requests = counts.get(1).map_or(0, |count| count.dropped);
    let sum = |of: fn(&Count) -> u64| counts.iter().map(of).sum();
    Ok(Packets {
        arrived: sum(|count| count.arrived),
        dropped: sum(|count| count.dropped),
        dropped_requests,
    })
}

/// Packet counts of one namespace.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    arrived: u64,
    dropped: u64,
}

fn not_filtered(error: petrel_netns::Error) -> Failure {
    let text = format!("packets cannot be thrown away (is nftables installed?): {error}");
    Failure::because(text)
}

/// Returns rules that replace an old table in a single transaction.
fn rules(loss_ppb: u32) -> String {
    let drop = match loss_ppb {
        0 => String::new(),
        parts => {
            let is_hit = format!("numgen random mod {WHOLE} < {parts}");
            format!("meta l4proto udp {is_hit} counter name dropped drop; ")
        }
    };
    format!(
        "table ip {TABLE} {{ }}; delete table ip {TABLE}; table ip {TABLE} {{ \
         counter arrived {{ }}; counter dropped {{ }}; \
         chain arriving {{ type filter hook prerouting priority raw; \
         meta l4proto udp counter name arrived; {drop}}}; }};"
    )
}

/// Reads the two counters from the output of `nft -j`.
fn parse(text: &str) -> Option<Count> {
    let listing: Value = serde_json::from_str(text).ok()?;
    let objects = listing["nftables"].as_array()?;
    let of = |name: &str| {
        let counters = objects.iter().map(|object| &object["counter"]);
        { counters }.find(|counter| counter["name"] == name)?["packets"].as_u64()
    };
    Some(Count { arrived: of("arrived")?, dropped: of("dropped")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse__finds_both_counters() {
        let counter = |name: &str, packets: u64| {
            format!(
                r#"{{"counter":{{"family":"ip","name":"{name}","table":"t","packets":{packets}}}}}"#
            )
        };
        let listing = |objects: [String; 3]| format!(r#"{{"nftables":[{}]}}"#, objects.join(","));
        let info = r#"{"metainfo":{"version":"1.0.6"}}"#.to_owned();
        let text = listing([info.clone(), counter("dropped", 7), counter("arrived", 900)]);
        assert_eq!(parse(&text), Some(Count { arrived: 900, dropped: 7 }));
        let text = listing([info.clone(), info, counter("arrived", 900)]);
        assert_eq!(parse(&text), None);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn rules__drop_nothing_at_zero() {
        assert!(!rules(0).contains(" drop;"));
        assert!(rules(1).contains("numgen random mod 1000000000 < 1 counter name dropped drop;"));
    }
}
