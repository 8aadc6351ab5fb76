import java.util.ArrayList;

/** Fills a heap with values that follow from their place, drops and replaces some, checks all. */
public class Heap {
    static long value(int block, int i, int round) {
        return (block * 1000003L + i) * 0x9E3779B97F4A7C15L + round;
    }

    public static void main(String[] args) throws Exception {
        int blocks = 1200, words = 16384;
        ArrayList<long[]> all = new ArrayList<>();
        int[] round = new int[blocks];
        for (int b = 0; b < blocks; b++) all.add(new long[words]);
        for (int r = 1; r <= 3; r++) {
            for (int b = 0; b < blocks; b += r) {
                long[] w = new long[words];
                for (int i = 0; i < words; i++) w[i] = value(b, i, r);
                all.set(b, w);
                round[b] = r;
            }
        }
        Thread.sleep(1200);
        for (int b = 0; b < blocks; b++)
            for (int i = 0; i < words; i++)
                if (all.get(b)[i] != value(b, i, round[b])) throw new Error("block " + b + " word " + i);
        System.out.println("right");
    }
}
