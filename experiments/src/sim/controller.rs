//! The congestion controllers to compare, and their settings for a fabric.

use std::fmt;
use std::str::FromStr;

use petrel_proto::congestion::{
    CongestionConfig, CongestionControl, DcqcnConfig, Rate, SwiftConfig, TimelyConfig,
};
use serde::{Serialize, Serializer};

use super::ExperimentError;
use petrel_sim::Probability;
use petrel_sim::fabric::EcnConfig;

/// A congestion controller, with the parameters of `docs/congestion.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Credits alone.
    None,
    /// Round trips and their change.
    Timely,
    /// Timely without eRPC's two bypasses (§5.2.2): uncongested sessions report every burst's round trip to the
    /// controller, and pace their packets at the line rate.
    TimelyWithoutBypasses,
    /// ECN marks, which the switches then set.
    Dcqcn,
    /// Round trips against a target.
    Swift,
}

impl Controller {
    /// The controllers that experiments compare by default.
    pub const ALL: [Self; 4] = [Self::None, Self::Timely, Self::Dcqcn, Self::Swift];

    /// Every controller with a name.
    const NAMED: [Self; 5] =
        [Self::None, Self::Timely, Self::TimelyWithoutBypasses, Self::Dcqcn, Self::Swift];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Timely => "timely",
            Self::TimelyWithoutBypasses => "timely-no-bypass",
            Self::Dcqcn => "dcqcn",
            Self::Swift => "swift",
        }
    }

    /// Returns the endpoint setting for a link of this number of Gbit/s.
    pub(super) fn control(self, line_gbit: u64) -> Result<CongestionControl, ExperimentError> {
        let line = Rate::gbit(line_gbit);
        let config = match self {
            Self::None => CongestionConfig::None,
            Self::Timely => CongestionConfig::Timely(TimelyConfig::for_line(line)),
            Self::TimelyWithoutBypasses => CongestionConfig::Timely(TimelyConfig {
                bypass: false,
                pacer_bypass: false,
                ..TimelyConfig::for_line(line)
            }),
            Self::Dcqcn => CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)),
            Self::Swift => CongestionConfig::Swift(SwiftConfig::new()),
        };
        Ok(CongestionControl::new(config)?)
    }

    /// Returns true if its packets may be marked.
    pub(super) fn heeds_marks(self) -> bool {
        self == Self::Dcqcn
    }

    /// Returns when switches mark packets for this controller, at ports of this number of Gbit/s: the
    /// thresholds under which `docs/congestion.md` shows the behaviour of the controller alone.
    pub(super) fn marks(self, port_gbit: u64) -> Option<EcnConfig> {
        let scale = port_gbit.div_ceil(25);
        self.heeds_marks().then_some(EcnConfig {
            k_min_bytes: 40_000 * scale,
            k_max_bytes: 200_000 * scale,
            p_max: Probability::percent(20),
        })
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Controller {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMED.into_iter().find(|controller| controller.name() == text);
        known.ok_or_else(|| {
            let names = Self::NAMED.map(Self::name).join(", ");
            format!("'{text}' is no congestion control; these are: {names}")
        })
    }
}

impl Serialize for Controller {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__takes_every_name_and_lists_them() {
        for controller in Controller::NAMED {
            assert_eq!(controller.name().parse(), Ok(controller));
            assert!(controller.control(25).is_ok() && controller.control(100).is_ok());
        }
        assert!("reno".parse::<Controller>().unwrap_err().contains("timely-no-bypass, dcqcn"));
    }

    #[test]
    fn marks__are_for_dcqcn_alone_and_grow_with_the_port() {
        assert_eq!(Controller::Timely.marks(25), None);
        assert_eq!(Controller::Dcqcn.marks(100).unwrap().k_min_bytes, 160_000);
    }
}
