//! Sessions that wait until frames get through, and the servers to which frames did not (`docs/wire-protocol.md` §8.10).

use std::collections::HashMap;
use std::net::SocketAddr;

use petrel_proto::SessionId;
use petrel_proto::control::SessionAccept;

use crate::control::LinkId;

/// The pause after the first probe, doubled with each further probe up to the longest.
const FIRST_PAUSE_NS: u64 = 4_000_000;
const PAUSE_NS_MAX: u64 = 32_000_000;

/// Without an answer to this number of probes in this time, frames do not get through.
const PROBES_MIN: u32 = 6;
const SILENCE_NS: u64 = 180_000_000;

/// After this number of probes that the system refused, frames do not get through either: a rule of this host.
const REFUSED_MIN: u32 = 3;

/// The least time for an answer, in round trips of the control connection.
const SILENCE_ROUND_TRIPS: u64 = 3;

/// An endpoint without another medium probes for this time.
const LAST_NS: u64 = 2_000_000_000;

/// The time during which a server is not asked again whether frames get through.
const MEMORY_NS: u64 = 9_000_000_000;

/// Servers whose failures are remembered. Further failures are not.
const REMEMBERED_MAX: usize = 1_024;

/// A session that the server has accepted, and whose link has not carried a frame yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing {
    pub(super) session: SessionId,
    pub(super) link: LinkId,
    pub(super) accept: SessionAccept,
    /// The number of the probes, unknown to others.
    pub(super) number: u64,
    /// Whether the endpoint has another medium for the server.
    pub(super) has_other: bool,
    /// The time without an answer after which frames do not get through.
    silence_ns: u64,
    began_ns: u64,
    next_ns: u64,
    pause_ns: u64,
    sent: u32,
    /// The frames that the system had refused before the first probe.
    refused_before: u64,
    is_refused: bool,
    is_reported: bool,
}

impl Probing {
    pub(super) fn new(
        (session, link): (SessionId, LinkId),
        accept: SessionAccept,
        number: u64,
        (now_ns, path_rtt_ns): (u64, Option<u32>),
        (has_other, refused_before): (bool, u64),
    ) -> Self {
        let round_trips_ns = SILENCE_ROUND_TRIPS * path_rtt_ns.map_or(0, u64::from);
        Self {
            session,
            link,
            accept,
            number,
            has_other,
            silence_ns: SILENCE_NS.max(round_trips_ns),
            began_ns: now_ns,
            next_ns: now_ns,
            pause_ns: FIRST_PAUSE_NS,
            sent: 0,
            refused_before,
            is_refused: false,
            is_reported: false,
        }
    }

    /// Returns true if the system has refused all probes.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns the probes sent, and for how long.
    pub(super) fn effort(&self, now_ns: u64) -> (u32, u64) {
        (self.sent, now_ns.saturating_sub(self.began_ns))
    }
}

/// The next step of a session that waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A probe is due.
    Probe(Probing),
    /// Frames do not get through, though they may later. Comes once.
    Report(Probing),
    /// It is useless to wait longer.
    GiveUp(Probing),
}

/// The address of a server, and the name of a medium.
pub(super) type Way = (SocketAddr, &'static str);

/// All sessions that wait.
#[derive(Debug, Default)]
pub(super) struct Probes {
    waiting: Vec<Probing>,
    /// The servers to which frames of a medium did not get through, and when the next link may try.
    unreached: HashMap<Way, u64>,
}

impl Probes {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn begin(&mut self, probing: Probing) {
        let is_new = self.waiting.iter().all(|other| other.session != probing.session);
        assert!(is_new, "a session is probed once: {:?}", probing.session);
        self.waiting.push(probing);
    }

    /// Returns when the next step is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.waiting.iter().map(|probing| probing.next_ns).min()
    }

    /// Returns the next step that is due. `refused` counts the endpoint's frames that the system has refused.
    pub(super) fn step(&mut self, now_ns: u64, refused: u64) -> Option<Step> {
        let due = self.waiting.iter_mut().find(|probing| probing.next_ns <= now_ns)?;
        let (sent, ns) = due.effort(now_ns);
        due.is_refused = sent >= REFUSED_MIN && refused - due.refused_before >= u64::from(sent);
        let is_silent = due.is_refused || sent >= PROBES_MIN && ns >= due.silence_ns;
        if is_silent && !due.is_reported {
            due.is_reported = true;
            return Some(Step::Report(*due));
        }
        if is_silent && (due.has_other || ns >= LAST_NS) {
            return Some(Step::GiveUp(*due));
        }
        due.sent += 1;
        due.next_ns = now_ns + due.pause_ns;
        due.pause_ns = (2 * due.pause_ns).min(PAUSE_NS_MAX);
        Some(Step::Probe(*due))
    }

    /// Takes a session to which an answer with this number has come.
    pub(super) fn answered(&mut self, session: SessionId, number: u64) -> Option<Probing> {
        let is_it = |probing: &Probing| probing.session == session && probing.number == number;
        let place = self.waiting.iter().position(is_it)?;
        Some(self.waiting.swap_remove(place))
    }

    /// Takes a session that ends, or changes its link.
    pub(super) fn take(&mut self, session: SessionId) -> Option<Probing> {
        let place = self.waiting.iter().position(|probing| probing.session == session)?;
        Some(self.waiting.swap_remove(place))
    }

    /// Takes the sessions on a link that has carried a frame.
    pub(super) fn take_all_on(&mut self, link: LinkId) -> Vec<Probing> {
        let (taken, rest) = self.waiting.iter().partition(|probing| probing.link == link);
        self.waiting = rest;
        taken
    }

    /// Remembers that frames of a medium to a server do not get through.
    pub(super) fn remember(&mut self, way: Way, now_ns: u64) {
        if self.unreached.len() >= REMEMBERED_MAX {
            self.unreached.retain(|_, until_ns| *until_ns > now_ns);
        }
        if self.unreached.len() < REMEMBERED_MAX {
            self.unreached.insert(way, now_ns + MEMORY_NS);
        }
    }

    /// Forgets a failure. Returns true if there was one.
    pub(super) fn forget(&mut self, way: Way) -> bool {
        self.unreached.remove(&way).is_some()
    }

    /// Returns true if frames of a medium to a server did not get through a moment ago.
    pub(super) fn is_unreached(&self, way: Way, now_ns: u64) -> bool {
        self.unreached.get(&way).is_some_and(|until_ns| *until_ns > now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId { index: 3, generation: 1 };
    const MS: u64 = 1_000_000;

    fn probing(path_rtt_ns: Option<u32>, has_other: bool) -> Probing {
        let accept = SessionAccept {
            link: 0,
            request: 0,
            session: 0,
            token: 0,
            slots: 8,
            credits: 8,
            max_message: 0,
            packet_bytes: 1_400,
        };
        Probing::new((SESSION, LinkId(1)), accept, 99, (0, path_rtt_ns), (has_other, 7))
    }

    /// When the failure is reported, and when given up, in milliseconds.
    fn ends(path_rtt_ns: Option<u32>, has_other: bool) -> (u64, u64) {
        let mut probes = Probes::default();
        probes.begin(probing(path_rtt_ns, has_other));
        let mut reported = None;
        loop {
            let now_ns = probes.next_ns().unwrap();
            match probes.step(now_ns, 7).unwrap() {
                Step::Probe(_) => {}
                Step::Report(_) => reported = Some(now_ns / MS),
                Step::GiveUp(_) => return (reported.unwrap(), now_ns / MS),
            }
        }
    }

    #[test]
    fn step__reports_within_200_ms_and_gives_up_then_or_later() {
        assert_eq!(ends(None, true), (188, 188));
        assert_eq!(ends(Some(1_000_000), true), (188, 188));
        let (reported, ended) = ends(Some(200_000_000), true);
        assert!(reported >= 600 && ended == reported);
        let (reported, ended) = ends(None, false);
        assert_eq!(reported, 188);
        assert!((2_000..2_100).contains(&ended), "{ended}");
    }

    /// After a pause of the thread, the answers may be in the socket.
    #[test]
    fn step__of_a_thread_that_did_not_run_sends_probes_first() {
        let mut probes = Probes::default();
        probes.begin(probing(None, true));
        for number in 1..=PROBES_MIN {
            let step = probes.step(u64::from(number) * 1_000 * MS, 7);
            assert!(matches!(step, Some(Step::Probe(_))), "{number}: {step:?}");
        }
        assert!(matches!(probes.step(10_000 * MS, 7), Some(Step::Report(_))));
    }

    /// A refused frame of another session is no evidence.
    #[test]
    fn step__of_probes_that_the_system_refuses_reports_at_once() {
        for (refused, reported_ms) in [(1, 28), (0, 188)] {
            let mut probes = Probes::default();
            probes.begin(probing(None, true));
            let mut all = 7;
            loop {
                let now_ns = probes.next_ns().unwrap();
                match probes.step(now_ns, all + 1 - refused).unwrap() {
                    Step::Probe(_) => all += refused,
                    Step::Report(probing) => {
                        assert_eq!((now_ns / MS, probing.is_refused), (reported_ms, refused == 1));
                        break;
                    }
                    Step::GiveUp(_) => panic!("it is not reported"),
                }
            }
        }
    }

    #[test]
    fn answered__by_the_number_of_the_probe_alone() {
        let mut probes = Probes::default();
        probes.begin(probing(None, true));
        assert!(probes.answered(SESSION, 98).is_none());
        assert!(probes.answered(SESSION, 99).is_some() && probes.is_empty());
    }

    #[test]
    fn remember__for_a_time_and_a_number_of_servers() {
        let mut probes = Probes::default();
        let server = |port: u16| (SocketAddr::from(([10, 0, 0, 1], port)), "udp");
        (1..=2_000).for_each(|port| probes.remember(server(port), 0));
        assert_eq!(probes.unreached.len(), REMEMBERED_MAX);
        assert!(probes.is_unreached(server(1), MEMORY_NS - 1));
        assert!(!probes.is_unreached(server(1), MEMORY_NS));
        probes.remember(server(2_000), MEMORY_NS);
        assert!(probes.is_unreached(server(2_000), MEMORY_NS) && probes.unreached.len() == 1);
    }
}
