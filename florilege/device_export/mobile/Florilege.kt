// Prediction sets on Android, from the outputs of model.onnx in com.microsoft.onnxruntime:onnxruntime-android.

import org.json.JSONArray
import org.json.JSONObject
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.pow

/** A prediction set: indices of classes, best first, and what was measured of sets like it. */
data class PredictionSet(
    val classes: List<Int>,
    val scores: DoubleArray, // of all classes
    val lambda: Double, // a class is in the set if its score is at least this
    val calibrated: Boolean, // whether lambda was chosen for this number of photos
    val hitRate: Double?, // share of sets that held the right class; null if unknown
    val unfamiliar: Boolean?, // whether the photos look unlike those of the training; null if unknown
) {
    /** The share to show: none holds for photos that look unlike those of the training. */
    val shownHitRate get() = if (unfamiliar == true) null else hitRate
}

/** The content of pack.json. */
class Florilege(pack: String) {
    private val json = JSONObject(pack)
    private val calibration = json.getJSONObject("calibration")

    /** The output of the network to pass to [predict]. */
    val output: String = json.getString("output")

    val classIds: List<String> = json.getJSONArray("classes").objects().map { it.getString("id") }

    /**
     * The set for the photos of one plant: their logits, and a calibrated mean set size.
     *
     * Throws IllegalArgumentException without photos, if logits are not those of all classes, or if
     * k is not calibrated.
     */
    fun predict(photos: List<FloatArray>, k: Double = calibration.getDouble("default_k")): PredictionSet {
        require(photos.isNotEmpty()) { "there is no photo" }
        require(photos.all { it.size == classIds.size }) { "a photo has ${classIds.size} logits" }
        val own = calibrated(photos.size, k)
        val (table, point) = own ?: requireNotNull(calibrated(1, k)) { "k = $k is not calibrated" }
        val (kind, temperature) = calibration.getString("score_kind") to calibration.getDouble("temperature")
        val exponent = if (table.isNull("fusion")) null else table.getDouble("fusion")
        val scores = if (exponent != null) product(photos, temperature, exponent)
        else fuse(photos.map { scoresOf(it, kind, temperature) })
        val lambda = point.getDouble("lambda")
        val order = scores.indices.sortedByDescending { scores[it] } // stable: ties keep their order
        val size = order.count { scores[it] >= lambda }.coerceAtLeast(table.getInt("min_size"))
        val rate = if (own == null) null else point.optJSONObject("hit_rate")
        return PredictionSet(order.take(size), scores, lambda, own != null, rate?.getDouble("value"), isUnfamiliar(photos))
    }

    /** Whether all photos are less familiar than the threshold; features would need more files. */
    private fun isUnfamiliar(photos: List<FloatArray>): Boolean? {
        val whole = calibration.optJSONObject("rejection") ?: return null
        val rule = if (whole.getString("method") == "combined") whole.optJSONObject("by_logits") else whole
        if (rule == null) return null
        val kind = rule.getString("score_kind")
        return photos.all { familiarity(scoresOf(it, kind, 1.0)) < rule.getDouble("threshold") }
    }

    /** Minus the generalised entropy of the best 100 scores. */
    private fun familiarity(scores: DoubleArray) =
        -scores.sortedDescending().take(100).sumOf { (it * (1 - it)).pow(0.1) }

    private fun calibrated(images: Int, k: Double): Pair<JSONObject, JSONObject>? {
        val table = calibration.getJSONArray("tables").objects().firstOrNull {
            it.getString("rule") == "average_k" && it.getBoolean("usual") &&
                it.getInt("images") == images && it.isNull("list") && it.isNull("place")
        } ?: return null
        val point = table.getJSONArray("points").objects().firstOrNull { it.getDouble("k") == k }
        return point?.let { table to it }
    }

    /** Scores of one photo, in double precision. */
    private fun scoresOf(logits: FloatArray, kind: String, temperature: Double): DoubleArray {
        val scaled = DoubleArray(logits.size) { logits[it] / temperature }
        if (kind == "sigmoid") {
            return DoubleArray(scaled.size) {
                if (scaled[it] >= 0) 1 / (1 + exp(-scaled[it])) else exp(scaled[it]) / (1 + exp(scaled[it]))
            }
        }
        val best = scaled.max()
        val powers = DoubleArray(scaled.size) { exp(scaled[it] - best) }
        val total = powers.sum()
        return DoubleArray(powers.size) { powers[it] / total }
    }

    /** A product of the photos' likelihoods, with the prior counted once. */
    private fun product(photos: List<FloatArray>, temperature: Double, exponent: Double): DoubleArray {
        val shares = calibration.getJSONArray("prior")
        val prior = DoubleArray(shares.length()) { ln(shares.getDouble(it)) }
        val evidence = photos.map { logits ->
            val scaled = DoubleArray(logits.size) { logits[it] / temperature }
            val best = scaled.max()
            val sum = ln(scaled.sumOf { exp(it - best) }) + best
            DoubleArray(scaled.size) { scaled[it] - sum - prior[it] }
        }
        val fused = DoubleArray(prior.size) { place ->
            exponent * evidence.map { it[place] }.sorted().sum() + prior[place]
        }
        val usable = if (fused.all { it == Double.NEGATIVE_INFINITY }) prior else fused
        val powers = DoubleArray(usable.size) { exp(usable[it] - usable.max()) }
        return DoubleArray(powers.size) { powers[it] / powers.sum() }
    }

    /** The mean over photos. */
    private fun fuse(rows: List<DoubleArray>) =
        DoubleArray(rows[0].size) { place -> rows.map { it[place] }.sorted().sum() / rows.size }
}

private fun JSONArray.objects() = (0 until length()).map { getJSONObject(it) }
