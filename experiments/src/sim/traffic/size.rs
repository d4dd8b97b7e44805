//! Published distributions of message sizes.

use std::fmt;
use std::str::FromStr;

use petrel_sim::Rng;

/// A distribution of message sizes, given by points of its cumulative distribution. Sizes between two points
/// are equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SizeDistribution {
    /// Flows of a cluster for web search: Alizadeh et al., Data Center TCP, SIGCOMM 2010. Three
    /// tenths of the flows have 95 % of the bytes.
    WebSearch,
    /// Flows of a cluster for data mining: Greenberg et al., VL2, SIGCOMM 2009. Half of the flows fit into a
    /// packet, and a twentieth has 99 % of the bytes.
    DataMining,
}

/// A size in bytes, and the percentage of flows that are not larger.
type Point = (u64, u32);

/// The points of `conf/DCTCP_CDF.txt` of github.com/HKUST-SING/TrafficGenerator, which most later simulations use.
const WEB_SEARCH: [Point; 12] = [
    (0, 0),
    (10_000, 15),
    (20_000, 20),
    (30_000, 30),
    (50_000, 40),
    (80_000, 53),
    (200_000, 60),
    (1_000_000, 70),
    (2_000_000, 80),
    (5_000_000, 90),
    (10_000_000, 97),
    (30_000_000, 100),
];

/// The points of `conf/VL2_CDF.txt` there.
const DATA_MINING: [Point; 13] = [
    (0, 0),
    (180, 10),
    (216, 20),
    (560, 30),
    (900, 40),
    (1_100, 50),
    (1_870, 60),
    (3_160, 70),
    (10_000, 80),
    (400_000, 90),
    (3_160_000, 95),
    (100_000_000, 98),
    (1_000_000_000, 100),
];

/// Parts of a percent; a draw is a number of parts.
const PARTS: u64 = 1 << 32;

impl SizeDistribution {
    /// Both distributions.
    pub const ALL: [Self; 2] = [Self::WebSearch, Self::DataMining];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WebSearch => "web-search",
            Self::DataMining => "data-mining",
        }
    }

    /// Returns the points: a size in bytes, and the percentage of flows that are not larger.
    pub const fn points(self) -> &'static [(u64, u32)] {
        match self {
            Self::WebSearch => &WEB_SEARCH,
            Self::DataMining => &DATA_MINING,
        }
    }

    /// Returns the mean size in bytes.
    pub fn mean_bytes(self) -> f64 {
        let of = |pair: &[Point]| {
            let ((low, from), (high, to)) = (pair[0], pair[1]);
            (low + high) as f64 / 2.0 * f64::from(to - from) / 100.0
        };
        self.points().windows(2).map(of).fold(0.0, |sum, part| sum + part)
    }

    /// Draws a size in bytes, at least 1, by one number of the generator.
    pub fn draw(self, rng: &mut Rng) -> u64 {
        self.at(rng.below(100 * PARTS)).max(1)
    }

    /// Returns the size that this share of flows does not exceed; the share is in [`PARTS`] of a percent.
    /// Integers make a draw the same on every machine.
    fn at(self, share: u64) -> u64 {
        let points = self.points();
        let above = points.partition_point(|&(_, percent)| u64::from(percent) * PARTS <= share);
        let Some(&(high, to)) = points.get(above) else { return points[points.len() - 1].0 };
        let (low, from) = points[above - 1];
        let along = u128::from(share - u64::from(from) * PARTS);
        let width = u128::from(u64::from(to - from) * PARTS);
        low + (u128::from(high - low) * along / width) as u64
    }
}

impl fmt::Display for SizeDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SizeDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|sizes| sizes.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is no distribution of sizes; these are: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points__ascend_to_all() {
        for sizes in SizeDistribution::ALL {
            assert!(sizes.points().is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
            assert_eq!(sizes.points()[0], (0, 0));
            assert_eq!(sizes.points().last().unwrap().1, 100);
            assert_eq!(sizes.name().parse(), Ok(sizes));
        }
        assert!("mail".parse::<SizeDistribution>().unwrap_err().contains("data-mining"));
    }

    #[test]
    fn at__is_linear_between_points() {
        let at = |percent: f64| SizeDistribution::WebSearch.at((percent * PARTS as f64) as u64);
        assert_eq!((at(0.0), at(15.0), at(17.5), at(40.0)), (0, 10_000, 15_000, 50_000));
        assert_eq!(SizeDistribution::WebSearch.at(100 * PARTS - 1), 29_999_999);
        assert_eq!(SizeDistribution::WebSearch.at(100 * PARTS), 30_000_000);
    }

    #[test]
    fn mean_bytes__by_hand() {
        assert_eq!(SizeDistribution::WebSearch.mean_bytes().round(), 1_711_250.0);
        assert_eq!(SizeDistribution::DataMining.mean_bytes().round(), 12_658_199.0);
    }

    #[test]
    fn draw__has_the_mean_and_the_shares() {
        const DRAWS: usize = 100_000;
        let mut rng = Rng::new(5);
        let sizes = SizeDistribution::WebSearch;
        let draws: Vec<u64> = (0..DRAWS).map(|_| sizes.draw(&mut rng)).collect();
        let mean = draws.iter().sum::<u64>() as f64 / DRAWS as f64;
        // The deviation of a size is 4 MB, and so the standard error 0.7 % of the mean.
        assert!((mean / sizes.mean_bytes() - 1.0).abs() < 0.03, "{mean}");
        for &(bytes, percent) in sizes.points() {
            let share = draws.iter().filter(|&&draw| draw <= bytes).count() as f64 / DRAWS as f64;
            assert!((share - f64::from(percent) / 100.0).abs() < 0.01, "{bytes}: {share}");
        }
        assert!(draws.iter().all(|&draw| draw > 0));
    }
}
