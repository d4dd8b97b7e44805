//! Service times of requests.

use std::str::FromStr;

use petrel_sim::fabric::exponential;
use petrel_sim::{Probability, Rng};

/// The distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// All requests take the same time.
    Fixed,
    /// Exponentially distributed.
    Exponential,
    /// Nine of ten requests are short, the tenth takes ten times as long.
    Bimodal,
}

/// The share of long requests.
const LONG: Probability = Probability::percent(10);

/// The ratio of long to short service times.
const LONGER: u64 = 10;

impl Service {
    /// All distributions.
    pub const ALL: [Self; 3] = [Self::Fixed, Self::Exponential, Self::Bimodal];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Fixed => "fixed",
            Service::Exponential => "exponential",
            Service::Bimodal => "bimodal",
        }
    }

    pub(super) fn draw_ns(self, mean_ns: u64, rng: &mut Rng) -> u64 {
        match self {
            Service::Fixed => mean_ns,
            Service::Exponential => exponential(mean_ns, rng),
            Service::Bimodal => {
                // 0.9 × 1 + 0.1 × 10 short times.
                let short_ns = mean_ns * 10 / (9 + LONGER);
                if rng.chance(LONG) { short_ns * LONGER } else { short_ns }
            }
        }
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|service| service.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is no distribution of service times; these are: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_ns__has_its_mean() {
        for service in Service::ALL {
            let mut rng = Rng::new(1);
            let sum: u64 = (0..100_000).map(|_| service.draw_ns(10_000, &mut rng)).sum();
            // The standard errors are below 50 ns.
            assert!((sum / 100_000).abs_diff(10_000) < 200, "{} {sum}", service.name());
        }
    }

    #[test]
    fn from_str__takes_every_name_and_lists_them() {
        assert!(Service::ALL.iter().all(|service| service.name().parse() == Ok(*service)));
        assert!("uniform".parse::<Service>().unwrap_err().contains("bimodal"));
    }
}
