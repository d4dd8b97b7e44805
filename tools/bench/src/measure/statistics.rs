//! Medians and quartiles.

use serde::Serialize;

/// The spread of the pairs' ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    /// The first quartile.
    pub q1: f64,
    /// The third quartile.
    pub q3: f64,
    pub max: f64,
}

/// Returns the median, or `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values = sorted(values);
    (!values.is_empty()).then(|| quantile(&values, 0.5))
}

/// Returns the spread, or `None` without values.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let values = sorted(values);
    let (min, max) = (*values.first()?, *values.last()?);
    Some(Spread { min, q1: quantile(&values, 0.25), q3: quantile(&values, 0.75), max })
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns a quantile, interpolated between two values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    low + (high - low) * position.fract()
}

/// Returns a ratio as the text of a cell; empty without one.
pub fn format_ratio(ratio: Option<f64>) -> String {
    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median__is_the_middle_or_between_the_two_middle_ones() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn spread__has_the_quartiles() {
        let expected = Spread { min: 1.0, q1: 2.0, q3: 4.0, max: 5.0 };
        assert_eq!(spread([5.0, 1.0, 4.0, 2.0, 3.0]), Some(expected));
        assert_eq!(spread([]), None);
    }
}
