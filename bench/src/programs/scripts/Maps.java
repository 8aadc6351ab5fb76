import java.util.*;

public class Maps {
    public static void main(String[] words) {
        long n = Long.parseLong(words[0]) / 260, sum = 0;
        HashMap<Long, long[]> map = new HashMap<>();
        for (long i = 0; i < n; i++) map.put(i, new long[] {i, i * 3, i * 7});
        for (int round = 0; round < 3; round++)
            for (long i = 0; i < n; i++) sum += map.get(i)[1];
        Random random = new Random(1);
        TreeMap<Long, String> sorted = new TreeMap<>();
        for (int i = 0; i < n / 4; i++) sorted.put(random.nextLong(), "v" + i);
        for (Map.Entry<Long, String> entry : sorted.entrySet()) sum += entry.getValue().hashCode();
        System.out.println(map.size() + " " + sorted.size() + " " + sum);
    }
}
