{{/* What every pod and every container has. */}}
{{- define "rdukit.pod" -}}
{{- /* Only the account of who calls the cluster's API has a token in its pod. */ -}}
serviceAccountName: {{ .account | default (include "rdukit.serviceAccount" .root) }}
automountServiceAccountToken: {{ not (empty .account) }}
# Otherwise the address of a service named …-gateway would become RDUKIT_GATEWAY_PORT.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 10001 }}
  runAsGroup: {{ .user | default 10001 }}
  fsGroup: {{ .user | default 10001 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "rdukit.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* On the machine of the node's daemon: its socket, and SQLite, are of one machine. */}}
{{- define "rdukit.beside" -}}
{{- with .Values.node.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "rdukit.selector" (dict "root" . "part" "node") | nindent 12 }}
{{- end -}}

{{/* Variables of the platform's parts; settings of the part win over those of all. */}}
{{- define "rdukit.environment" -}}
- {name: RDUKIT_HOME, value: /var/lib/rdukit/home}
- {name: RDUKIT_LOG_LEVEL, value: {{ .root.Values.logLevel }}}
- name: RDUKIT_BROKER_URL
  valueFrom:
    secretKeyRef:
      {{- if .root.Values.broker.bundled }}
      name: {{ include "rdukit.secret" .root }}
      key: broker-url
      {{- else }}
      name: {{ required "broker.external.secret: name the secret that holds the broker's URL, or set broker.bundled" .root.Values.broker.external.secret }}
      key: {{ .root.Values.broker.external.key }}
      {{- end }}
{{- if ne .root.Values.database.kind "sqlite" }}
- name: RDUKIT_DATABASE_URL
  valueFrom:
    secretKeyRef:
      {{- if eq .root.Values.database.kind "bundled" }}
      name: {{ include "rdukit.secret" .root }}
      key: database-url
      {{- else }}
      name: {{ required "database.external.secret: name the secret that holds the database's URL, or choose another database.kind" .root.Values.database.external.secret }}
      key: {{ .root.Values.database.external.key }}
      {{- end }}
{{- end }}
{{- with .root.Values.artifacts }}
{{- if or .store .existingClaim }}
- {name: RDUKIT_ARTIFACTS_STORE, value: {{ .store | default "/artifacts" | quote }}}
{{- end }}
{{- end }}
{{- include "rdukit.settings" (mergeOverwrite (deepCopy .root.Values.settings) .settings) }}
{{- end -}}

{{/* Of who reads and writes artifacts: the bucket's keys, or the claim of the folder. */}}
{{- define "rdukit.bucketKeys" -}}
{{- with .Values.artifacts.secretEnvironment }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{- define "rdukit.artifactMounts" -}}
{{- if .Values.artifacts.existingClaim }}
- {name: artifacts, mountPath: /artifacts}
{{- end }}
{{- end -}}

{{- define "rdukit.artifactVolumes" -}}
{{- with .Values.artifacts.existingClaim }}
- name: artifacts
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end -}}

{{- define "rdukit.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "rdukit.homeMounts" -}}
- {name: home, mountPath: /var/lib/rdukit}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "rdukit.homeVolumes" -}}
- name: home
  persistentVolumeClaim: {claimName: {{ include "rdukit.homeClaim" . }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp | default "2Gi" }}}
{{- end -}}

{{/* A service goes on serving until all have heard that it goes. */}}
{{- define "rdukit.linger" -}}
preStop:
  exec:
    command: [python, -I, -S, -c, "import time; time.sleep({{ . }})"]
{{- end -}}

{{- define "rdukit.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels: {{- .labels | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicas: {{ .scaling.minReplicas }}
  maxReplicas: {{ .scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .scaling.targetCPU }}}
  behavior:
    # Models take a while to load, so pods that were started stay for some minutes.
    scaleDown: {stabilizationWindowSeconds: 300}
{{- end -}}
