// Prediction sets on iOS, from the outputs of model.onnx in the pod onnxruntime-objc.

import Foundation

/// A prediction set: indices of classes, best first, and what was measured of sets like it.
struct PredictionSet {
    let classes: [Int]
    let scores: [Double]  // of all classes
    let lambda: Double  // a class is in the set if its score is at least this
    let calibrated: Bool  // whether lambda was chosen for this number of photos
    let hitRate: Double?  // share of sets that held the right class; nil if unknown
    let unfamiliar: Bool?  // whether the photos look unlike those of the training; nil if unknown

    /// The share to show: none holds for photos that look unlike those of the training.
    var shownHitRate: Double? { unfamiliar == true ? nil : hitRate }
}

enum PredictionError: Error {
    case noPhoto
    case wrongNumberOfLogits
    case notCalibrated
}

/// The content of pack.json.
struct Florilege: Decodable {
    struct ClassInfo: Decodable { let id: String, scientificName: String }
    struct Figure: Decodable { let value: Double }
    struct Point: Decodable { let k: Double?, lambda: Double?, hitRate: Figure? }
    struct Table: Decodable {
        let rule: String, usual: Bool, images: Int, list: String?, place: String?, minSize: Int
        let fusion: Double?  // exponent of a product of likelihoods; nil for the mean of scores
        let points: [Point]
    }
    struct LogitsRule: Decodable { let threshold: Double, scoreKind: String }
    struct Rejection: Decodable {
        let method: String, threshold: Double, scoreKind: String, byLogits: LogitsRule?
    }
    struct Calibration: Decodable {
        let scoreKind: String, temperature: Double, defaultK: Double, tables: [Table], prior: [Double]
        let rejection: Rejection?
    }

    let output: String  // the output of the network to pass to `predict`
    let classes: [ClassInfo]
    let calibration: Calibration

    init(pack: Data) throws {
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        self = try decoder.decode(Florilege.self, from: pack)
    }

    /// The set for the photos of one plant: their logits, and a calibrated mean set size.
    ///
    /// Throws a `PredictionError` without photos, if logits are not those of all classes, or if k is
    /// not calibrated.
    func predict(_ photos: [[Float]], k wanted: Double? = nil) throws -> PredictionSet {
        guard !photos.isEmpty else { throw PredictionError.noPhoto }
        guard photos.allSatisfy({ $0.count == classes.count })
        else { throw PredictionError.wrongNumberOfLogits }
        let k = wanted ?? calibration.defaultK
        let own = calibrated(photos.count, k)
        guard let (table, point) = own ?? calibrated(1, k), let lambda = point.lambda
        else { throw PredictionError.notCalibrated }
        let (kind, temperature) = (calibration.scoreKind, calibration.temperature)
        let scores: [Double]
        if let exponent = table.fusion {
            scores = product(photos, exponent)
        } else {
            scores = Self.fuse(photos.map { Self.scores($0, kind, temperature) })
        }
        let order = scores.indices.sorted { (scores[$1], $0) < (scores[$0], $1) }  // ties keep their order
        let size = max(table.minSize, order.filter { scores[$0] >= lambda }.count)
        let hitRate = own == nil ? nil : point.hitRate?.value
        return PredictionSet(
            classes: Array(order.prefix(size)), scores: scores, lambda: lambda,
            calibrated: own != nil, hitRate: hitRate, unfamiliar: isUnfamiliar(photos))
    }

    /// Whether all photos are less familiar than the threshold; features would need more files.
    private func isUnfamiliar(_ photos: [[Float]]) -> Bool? {
        guard let whole = calibration.rejection else { return nil }
        let own = LogitsRule(threshold: whole.threshold, scoreKind: whole.scoreKind)
        guard let rule = whole.method == "combined" ? whole.byLogits : own else { return nil }
        return photos.allSatisfy {
            Self.familiarity(Self.scores($0, rule.scoreKind, 1)) < rule.threshold
        }
    }

    /// Minus the generalised entropy of the best 100 scores.
    private static func familiarity(_ scores: [Double]) -> Double {
        -scores.sorted(by: >).prefix(100).reduce(0) { $0 + pow($1 * (1 - $1), 0.1) }
    }

    private func calibrated(_ images: Int, _ k: Double) -> (Table, Point)? {
        let table = calibration.tables.first {
            $0.rule == "average_k" && $0.usual && $0.images == images && $0.list == nil && $0.place == nil
        }
        guard let table, let point = table.points.first(where: { $0.k == k }) else { return nil }
        return (table, point)
    }

    /// Scores of one photo, in double precision.
    private static func scores(
        _ logits: [Float], _ kind: String, _ temperature: Double
    ) -> [Double] {
        let scaled = logits.map { Double($0) / temperature }
        if kind == "sigmoid" {
            return scaled.map { $0 >= 0 ? 1 / (1 + exp(-$0)) : exp($0) / (1 + exp($0)) }
        }
        let best = scaled.max() ?? 0
        let powers = scaled.map { exp($0 - best) }
        let total = powers.reduce(0, +)
        return powers.map { $0 / total }
    }

    /// A product of the photos' likelihoods, with the prior counted once.
    private func product(_ photos: [[Float]], _ exponent: Double) -> [Double] {
        let prior = calibration.prior.map { log($0) }
        let evidence = photos.map { logits -> [Double] in
            let scaled = logits.map { Double($0) / calibration.temperature }
            let best = scaled.max() ?? 0
            let sum = log(scaled.reduce(0) { $0 + exp($1 - best) }) + best
            return scaled.indices.map { scaled[$0] - sum - prior[$0] }
        }
        let fused = prior.indices.map { place in
            exponent * evidence.map { $0[place] }.sorted().reduce(0, +) + prior[place]
        }
        let best = fused.max() ?? 0
        let powers = (best == -.infinity ? prior : fused).map { exp($0 - (best == -.infinity ? 0 : best)) }
        let total = powers.reduce(0, +)
        return powers.map { $0 / total }
    }

    /// The mean over photos.
    private static func fuse(_ rows: [[Double]]) -> [Double] {
        rows[0].indices.map { place in
            rows.map { $0[place] }.sorted().reduce(0, +) / Double(rows.count)
        }
    }
}
