//! Credentials: whether connections can begin with them.

use std::path::Path;
use std::time::SystemTime;

use petrel_tls::inspect::{Verdict, inspect};

use super::check::{Check, Status};

const AREA: &str = "credentials";

pub(super) fn checks(folder: &Path) -> Vec<Check> {
    let findings = inspect(folder, SystemTime::now()).into_iter();
    let check = |finding: petrel_tls::inspect::Finding| Check {
        name: finding.name,
        area: AREA,
        status: match finding.verdict {
            Verdict::Good => Status::Ok,
            Verdict::Doubtful => Status::Warn,
            Verdict::Bad => Status::Fail,
        },
        found: finding.found,
        advice: finding.advice,
    };
    findings.map(check).collect()
}
