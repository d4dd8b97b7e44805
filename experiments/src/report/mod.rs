//! Tables, and plots as SVG files.
//!
//! | module | concern |
//! | --- | --- |
//! | [`chart`] | lines |
//! | [`plot`] | bars, and the file of a plot |
//! | [`rows`] | rows with the columns of an experiment |

pub(crate) mod chart;
pub(crate) mod plot;
pub(crate) mod rows;
