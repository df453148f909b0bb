// Prediction sets on iOS, from the outputs of model.onnx in the pod onnxruntime-objc.

import Foundation

/// A prediction set: indices of classes, best first, and what was measured of sets like it.
struct PredictionSet {
    let classes: [Int]
    let scores: [Double]  // of all classes; 0 for those that the list lacks
    let lambda: Double  // a class is in the set if its score is at least this
    let calibrated: Bool  // whether lambda was chosen for this number of photos and this list
    let hitRate: Double?  // share of sets that held the right class; nil if unknown
    let unfamiliar: Bool?  // whether the photos look unlike those of the training; nil if unknown

    /// The share to show: none holds for photos that look unlike those of the training.
    var shownHitRate: Double? { unfamiliar == true ? nil : hitRate }
}

enum PredictionError: Error {
    case noPhoto
    case wrongNumberOfLogits
    case unknownList
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
    struct ClassList: Decodable { let name: String, classes: [Int] }
    struct LogitsRule: Decodable { let threshold: Double, scoreKind: String }
    struct Rejection: Decodable {
        let method: String, threshold: Double, scoreKind: String, byLogits: LogitsRule?
    }
    struct Calibration: Decodable {
        let scoreKind: String, temperature: Double, defaultK: Double, tables: [Table], prior: [Double]
        let lists: [ClassList]  // output indices of the classes of each
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

    /// The set for the photos of one plant: their logits, a calibrated mean set size, and the name of
    /// a list if only its classes are possible.
    ///
    /// Throws a `PredictionError` without photos, if logits are not those of all classes, or if the
    /// list is unknown or k not calibrated.
    func predict(_ photos: [[Float]], k wanted: Double? = nil, list: String? = nil) throws
        -> PredictionSet
    {
        guard !photos.isEmpty else { throw PredictionError.noPhoto }
        guard photos.allSatisfy({ $0.count == classes.count })
        else { throw PredictionError.wrongNumberOfLogits }
        let listed = try outputs(of: list)
        guard let (table, point) = nearest(photos.count, list, wanted ?? calibration.defaultK),
            let lambda = point.lambda
        else { throw PredictionError.notCalibrated }
        let rows = photos.map { logits in
            Self.among(listed.map { Double(logits[$0]) / calibration.temperature })
        }
        let among: [Double]
        if let exponent = table.fusion {
            among = product(rows, listed, exponent)
        } else {
            among = Self.fuse(rows.map { Self.scores($0, calibration.scoreKind) })
        }
        var scores = [Double](repeating: 0, count: classes.count)
        for (place, index) in listed.enumerated() { scores[index] = among[place] }
        let order = listed.sorted { (scores[$1], $0) < (scores[$0], $1) }  // ties keep their order
        let size = max(table.minSize, order.filter { scores[$0] >= lambda }.count)
        let calibrated = table.images == photos.count && table.list == list
        return PredictionSet(
            classes: Array(order.prefix(size)), scores: scores, lambda: lambda,
            calibrated: calibrated, hitRate: calibrated ? point.hitRate?.value : nil,
            unfamiliar: isUnfamiliar(photos))
    }

    /// Output indices of the classes of a list, ascending; of all classes without one.
    private func outputs(of list: String?) throws -> [Int] {
        guard let list else { return Array(classes.indices) }
        guard let known = calibration.lists.first(where: { $0.name == list })
        else { throw PredictionError.unknownList }
        return known.classes
    }

    /// Whether all photos are less familiar than the threshold; features would need more files.
    private func isUnfamiliar(_ photos: [[Float]]) -> Bool? {
        guard let whole = calibration.rejection else { return nil }
        let own = LogitsRule(threshold: whole.threshold, scoreKind: whole.scoreKind)
        guard let rule = whole.method == "combined" ? whole.byLogits : own else { return nil }
        return photos.allSatisfy {
            Self.familiarity(Self.scores($0.map { Double($0) }, rule.scoreKind)) < rule.threshold
        }
    }

    /// Minus the generalised entropy of the best 100 scores.
    private static func familiarity(_ scores: [Double]) -> Double {
        -scores.sorted(by: >).prefix(100).reduce(0) { $0 + pow($1 * (1 - $1), 0.1) }
    }

    /// The threshold of this circumstance, or else of the most similar one: a list matters most.
    private func nearest(_ images: Int, _ list: String?, _ k: Double) -> (Table, Point)? {
        for name in list == nil ? [nil] : [list, nil] {
            for count in images == 1 ? [1] : [images, 1] {
                if let point = calibrated(count, name, k) { return point }
            }
        }
        return nil
    }

    private func calibrated(_ images: Int, _ list: String?, _ k: Double) -> (Table, Point)? {
        let table = calibration.tables.first {
            $0.rule == "average_k" && $0.usual && $0.images == images && $0.list == list && $0.place == nil
        }
        guard let table, let point = table.points.first(where: { $0.k == k }) else { return nil }
        return (table, point)
    }

    /// Logits of the listed classes; if none of them is possible, all are equal.
    private static func among(_ logits: [Double]) -> [Double] {
        logits.allSatisfy { $0 == -.infinity } ? logits.map { _ in 0 } : logits
    }

    /// Scores of one photo, in double precision.
    private static func scores(_ logits: [Double], _ kind: String) -> [Double] {
        if kind == "sigmoid" {
            return logits.map { $0 >= 0 ? 1 / (1 + exp(-$0)) : exp($0) / (1 + exp($0)) }
        }
        let best = logits.max() ?? 0
        let powers = logits.map { exp($0 - best) }
        let total = powers.reduce(0, +)
        return powers.map { $0 / total }
    }

    /// A product of the photos' likelihoods, with the prior counted once.
    private func product(_ photos: [[Double]], _ listed: [Int], _ exponent: Double) -> [Double] {
        let prior = listed.map { log(calibration.prior[$0]) }
        let evidence = photos.map { logits -> [Double] in
            let best = logits.max() ?? 0
            let sum = log(logits.reduce(0) { $0 + exp($1 - best) }) + best
            return logits.indices.map { logits[$0] - sum - prior[$0] }
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
