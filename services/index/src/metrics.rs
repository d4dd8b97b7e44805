//! Counters of requests, by method.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::service::{METHODS, Method};
use crate::store::Store;

/// The counters of a server: a part for each dispatch thread, and a part for all workers.
#[derive(Debug)]
pub struct Metrics(Box<[Part]>);

/// The counters of one or several threads. Separate cache lines, because the counters change with every request.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Part {
    requests: [AtomicU64; METHODS.len()],
    refused: AtomicU64,
}

impl Metrics {
    /// Counters for this number of dispatch threads.
    pub fn new(dispatch: u16) -> Self {
        Self((0..=dispatch).map(|_| Part::default()).collect())
    }

    pub(crate) fn dispatch(&self, number: u16) -> &Part {
        &self.0[usize::from(number)]
    }

    pub(crate) fn workers(&self) -> &Part {
        &self.0[self.0.len() - 1]
    }

    /// All counters, and the sizes of the store.
    pub fn report(&self, store: &Store) -> Vec<(String, u64)> {
        let sum = |read: &dyn Fn(&Part) -> &AtomicU64| {
            self.0.iter().map(|part| read(part).load(Ordering::Relaxed)).sum()
        };
        let mut report = vec![
            ("word_keys".to_owned(), store.words.len()),
            ("word_home_bytes".to_owned(), store.words.points().home_bytes()),
            ("word_lines_borrowed".to_owned(), store.words.points().overflow_lines()),
            ("bytes_keys".to_owned(), store.bytes.len()),
            ("bytes_used".to_owned(), store.bytes.bytes()),
            ("requests_refused".to_owned(), sum(&|part| &part.refused)),
        ];
        for (place, (name, _)) in METHODS.iter().enumerate() {
            report.push((format!("requests_{name}"), sum(&|part| &part.requests[place])));
        }
        report
    }
}

impl Part {
    /// Counts a request, on the single thread of this part: a load and a store, because an atomic addition takes 5 ns.
    #[inline]
    pub(crate) fn count(&self, method: Method) {
        let counter = &self.requests[place(method)];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a request, on any thread.
    pub(crate) fn count_shared(&self, method: Method) {
        self.requests[place(method)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was answered with an error, on any thread.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the place of a method's counter.
fn place(method: Method) -> usize {
    method as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreConfig;

    #[test]
    fn report__adds_up_the_parts() {
        let metrics = Metrics::new(2);
        metrics.dispatch(0).count(Method::GetWord);
        metrics.dispatch(1).count(Method::GetWord);
        metrics.workers().count_shared(Method::SumWords);
        metrics.workers().count_refused();
        let store = Store::new(StoreConfig::default());
        store.words.put(1, 2).unwrap();
        let report = metrics.report(&store);
        let value = |name: &str| report.iter().find(|(other, _)| other == name).unwrap().1;
        assert_eq!((value("requests_get_word"), value("requests_sum_words")), (2, 1));
        assert_eq!((value("requests_refused"), value("word_keys")), (1, 1));
    }
}
